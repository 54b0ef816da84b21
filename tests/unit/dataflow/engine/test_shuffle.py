"""A time that is too large for one place, computed by key: the same as in one place, to the last bit."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import (
    Aggregation,
    aggregate_rows,
    count,
    max_of,
    merge_parts,
    min_of,
    part_of_rows,
    sum_of,
)
from spark_timely.dataflow.delays import ceil_to
from spark_timely.dataflow.engine.shuffle import blocks_of, shuffled_aggregate, tables_of
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import OperatorError
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import stream_of
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import runner

FLOATS = [0.1, -0.1, 1e300, -1e300, 1e-300, 5e-324, 0.0, -0.0, 1e16, 3.0, math.inf, -math.inf, math.nan]
VALUES: dict[str, Aggregation] = {
    "rows": count(),
    "known": count("x"),
    "xs": sum_of("x"),
    "ns": sum_of("n"),
    "least": min_of("x"),
    "most": max_of("n"),
    "word": min_of("w"),
}
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("rows", pa.int64()),
        ("known", pa.int64()),
        ("xs", pa.float64()),
        ("ns", pa.int64()),
        ("least", pa.float64()),
        ("most", pa.int64()),
        ("word", pa.string()),
    ]
)


def drawn(rng: random.Random, n: int) -> pa.Table:
    special = rng.random() < 0.3
    floats = FLOATS if special else FLOATS[:10]
    big = (1 << 62) if rng.random() < 0.3 else 100
    return pa.table(
        {
            "k": pa.array([rng.choice(["a", "b", None]) for _ in range(n)], pa.string()),
            "x": pa.array([rng.choice([*floats, None]) for _ in range(n)], pa.float64()),
            "n": pa.array([rng.choice([None, rng.randrange(-big, big) // (n + 1)]) for _ in range(n)], pa.int64()),
            "w": pa.array([rng.choice(["x", "y", None]) for _ in range(n)], pa.string()),
        }
    )


def exactly(table: pa.Table) -> list[tuple[object, ...]]:
    """Return rows in order, floats by their bits: NaN, zeros and last places included."""
    rows = table.sort_by("k").to_pylist()
    return [tuple(x.hex() if isinstance(x, float) else x for x in row.values()) for row in rows]


@pytest.mark.parametrize("seed", range(60))
def test_parts_put_together_are_what_one_place_gives(seed: int) -> None:
    rng = random.Random(seed)
    rows = drawn(rng, rng.randrange(1, 60))
    cuts = sorted(rng.randrange(rows.num_rows + 1) for _ in range(rng.randrange(5)))
    pieces = [rows.slice(first, stop - first) for first, stop in zip([0, *cuts], [*cuts, rows.num_rows], strict=True)]
    rng.shuffle(pieces)
    parts = [part_of_rows(piece, ["k"], VALUES) for piece in pieces]
    expected = aggregate_rows(rows, ["k"], VALUES, SCHEMA)
    assert exactly(merge_parts(parts, ["k"], VALUES, SCHEMA)) == exactly(expected)
    for row in expected.to_pylist():
        mine = [x for k, x in zip(rows["k"].to_pylist(), rows["x"].to_pylist(), strict=True) if k == row["k"]]
        known = [x for x in mine if x is not None]
        if known and all(map(math.isfinite, known)):
            assert row["xs"] == math.fsum(known)


def test_buckets_without_groups_are_not_sent() -> None:
    parts = part_of_rows(pa.table({"k": ["a", "b", "c"], "n": [1, 2, 3]}), ["k"], {"s": sum_of("n")})
    sent = list(blocks_of(parts, 1, 50))
    assert 1 <= len({bucket for bucket, _ in sent}) == len(sent) <= 3
    assert all(table.num_rows for table in tables_of([content for _, content in sent]))
    schema = pa.schema([("k", pa.string()), ("s", pa.int64())])
    whole = merge_parts(tables_of([content for _, content in sent]), ["k"], {"s": sum_of("n")}, schema)
    assert sorted(whole.to_pylist(), key=lambda row: row["k"]) == [
        {"k": "a", "s": 1},
        {"k": "b", "s": 2},
        {"k": "c", "s": 3},
    ]
    assert list(blocks_of(parts.slice(0, 0), 1, 50)) == []


def test_sum_of_parts_beyond_64_bits_is_refused() -> None:
    rows = pa.table({"k": ["a"], "n": [(1 << 63) - 1]})
    parts = [part_of_rows(rows, ["k"], {"s": sum_of("n")})] * 2
    with pytest.raises(OverflowError, match="sum of column 'n' does not fit 64 bits"):
        merge_parts(parts, ["k"], {"s": sum_of("n")}, pa.schema([("k", pa.string()), ("s", pa.int64())]))


def test_aggregate_over_row_by_row_operators_is_computed_by_key() -> None:
    rows = stream_of({"_time": [1], "k": ["a"], "n": [1]})
    groups = rows.filter("n > 0").delay(ceil_to(5)).aggregate(by="k", m=count())
    assert shuffled_aggregate(groups.filter("m > 1").delay(ceil_to(10)).view) is groups.view
    for stream in (
        rows.filter("n > 0"),
        groups.aggregate(m=count()),
        rows.join(groups, on="k").aggregate(m=count()),
        groups.concat(groups),
        groups.unary_notify(lambda time, each: each),
    ):
        assert shuffled_aggregate(stream.view) is None


def test_giant_time_is_cut_by_rows_and_its_failures_are_named(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    log = create_log(str(tmp_path / "in"), schema, minimum=(0,))
    writer = log.writer(owner="test")
    rng = np.random.default_rng(1)
    rows = [pa.table({"_time": np.full(400, 7), "k": rng.integers(0, 50, 400), "x": rng.random(400)}) for _ in range(4)]
    for table in rows:
        writer.append(table)
    writer.advance(8)

    def broken(table: pa.Table) -> pa.Table:
        if table.num_rows:
            msg = "seven"
            raise ValueError(msg)
        return table

    scope = Scope("flow")
    replay = scope.replay(log)
    replay.aggregate(by="k", n=count(), s=sum_of("x")).filter("n > 1").capture(str(tmp_path / "out"))
    replay.map(broken).aggregate(n=count()).capture(str(tmp_path / "bad"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, workers=3, shuffle_bytes=0)
    jobs, counted = [], []
    run = runner(scope.storage)

    def noted(plans: object, tasks: list[object]) -> object:
        jobs.append([(task.output, task.piece) for task in tasks])  # type: ignore[attr-defined]
        results = run(plans, tasks)
        counted.extend(results)
        return results

    with pytest.raises(OperatorError, match=r"operator 'map_5' at times from \[0\] to \[8\]: found ValueError: seven"):
        engine.advance(noted)  # type: ignore[arg-type]
    assert jobs == [[(0, 0)] * 3 + [(1, 0)] * 3]
    assert sum(result.counts.get("replay_1", (0, 0))[0] for result in counted[:3]) == 1600
    found = open_log(str(tmp_path / "out"))
    assert found.frontier() == Antichain.of(8)
    expected = {}
    for table in rows:
        for k, x in zip(table["k"].to_pylist(), table["x"].to_pylist(), strict=True):
            expected.setdefault(k, []).append(x)
    got = {row["k"]: (row["n"], row["s"]) for row in found.messages().to_pylist()}
    assert got == {k: (len(xs), math.fsum(xs)) for k, xs in expected.items() if len(xs) > 1}
    assert open_log(str(tmp_path / "bad")).frontier() == Antichain.of(0)


def test_one_giant_time_of_which_no_row_is_left_gives_no_group(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), pa.schema([("k", pa.int64())]), minimum=(0,))
    log.writer(owner="test").append(pa.table({"_time": [7] * 40, "k": range(40)}), advance_to=8)
    scope = Scope("flow")
    scope.replay(log).filter("k > 100").aggregate(by="k", n=count()).capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, workers=3, shuffle_bytes=0)
    engine.advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    assert (out.frontier(), out.messages().num_rows) == (Antichain.of(8), 0)
