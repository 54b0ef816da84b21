"""Times of several coordinates through real queries: captured, handed on as events, replayed, read in batch.

Types are mixed (date × long, timestamp × int, …), the session's zone differs from the driver's and from UTC, and
each answer is compared with an oracle of tuples and loops.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import spark_timely
from spark_timely.cli import main
from spark_timely.spark import read_splits
from spark_timely.testing import assert_same_updates
from spark_timely.testing.strategies import MINIMA, PAYLOAD_SCHEMA, History, histories, rows_table, time_pools
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane
from tests.oracles.canonical_model import digest
from tests.oracles.capture_model import LateRowError
from tests.oracles.product_model import ProductModel
from tests.oracles.replay_model import ReplayModel, Row, Time, is_beyond, less_equal
from tests.support import ZONES, frontier_set, session_zone, write_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]

PAIRS = [("date", "long"), ("timestamp", "int"), ("timestamp", "date"), ("short", "timestamp")]


def few(n: int) -> settings:
    """Return hypothesis settings for draws that take seconds each: not shrunk, printed as they are."""
    return settings(
        max_examples=20 * n if long_lane() else n,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def start(df: DataFrame, through: str, path: str, checkpoint: str, options: dict[str, str]) -> None:
    """Capture all there is, through the sink or in foreachBatch."""
    writer = df.writeStream
    if through == "sink":
        writer = writer.format("timely").options(**options).option("path", path)
    else:
        names = {"timeColumn": "time_column", "lateData": "late_data"}
        keywords: dict[str, Any] = {names.get(name, name): value for name, value in options.items()}

        def into_log(batch: DataFrame, batch_id: int) -> None:
            spark_timely.capture(batch, batch_id, path=path, checkpoint=checkpoint, **keywords)

        writer = writer.foreachBatch(into_log)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def with_own(rows: list[tuple[Time, Row]], kinds: tuple[str, ...]) -> pa.Table:
    """Return rows as they are captured: payload, and their own times in columns `a` and `b`."""
    return rows_table(rows, kinds, names=["a", "b"])


def drawn_row(rng: random.Random, number: int) -> Row:
    return (("n", number), ("word", rng.choice([None, "moin", "日本"])))


@pytest.mark.parametrize("through", ["sink", "foreachBatch"])
@few(2)
@given(
    data=st.data(),
    kinds=st.sampled_from(PAIRS),
    late_data=st.sampled_from(["deadLetter", "advance", "error"]),
    rng=st.randoms(use_true_random=False),
)
def test_capture_judges_product_times_by_the_whole_antichain(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    through: str,
    data: st.DataObject,
    kinds: tuple[str, ...],
    late_data: str,
    rng: random.Random,
) -> None:
    from pyspark.errors import StreamingQueryException

    folder = tmp_path_factory.mktemp("product")
    pool = data.draw(time_pools(kinds))
    model = ProductModel(tuple(MINIMA[kind] for kind in kinds), late_data)
    path, checkpoint = str(folder / "log"), str(folder / "checkpoint")
    options = {"timeColumn": "a,b", "frontier": "hold", "lateData": late_data}
    own: dict[int, Time] = {}
    (folder / "in").mkdir()
    with session_zone(spark, rng.choice(ZONES)):
        for stage in range(3):
            times = [rng.choice(pool) for _ in range(rng.choice([6, 12]))]
            if late_data == "error" and stage < 2:
                times = [time for time in times if is_beyond(time, model.frontier)]
            rows = [(time, drawn_row(rng, len(own) + place)) for place, time in enumerate(times)]
            file = folder / "in" / f"part-{stage}.parquet"
            pq.write_table(with_own(rows, kinds), file)
            os.utime(file, (1_700_000_000 + stage, 1_700_000_000 + stage))
            df = spark.readStream.schema(spark.read.parquet(str(file)).schema).parquet(str(folder / "in"))
            try:
                model.batch(rows)
            except LateRowError:
                with pytest.raises(StreamingQueryException, match="behind the frontier"):
                    start(df.repartition(2), through, path, checkpoint, options)
                break
            start(df.repartition(2), through, path, checkpoint, options)
            own |= {dict(row)["n"]: time for time, row in rows}
            reachable = [time for time in pool if is_beyond(time, model.frontier)]
            targets = rng.sample(reachable, min(len(reachable), rng.choice([1, 2, 3])))
            if targets:
                model.advance(targets)
                log = spark_timely.open_log(path)
                log.advance("main", Antichain.of(*targets))
    log = spark_timely.open_log(path)
    assert frontier_set(log.frontier()) == model.frontier
    for table, rows in ((log.messages(), model.messages), (log.dead(), model.dead)):
        wanted = rows_table(rows, kinds)
        mine = with_own([(own[dict(row)["n"]], row) for _, row in rows], kinds)
        for name in ("a", "b"):
            wanted = wanted.append_column(name, mine[name])
        assert_same_updates(table.select(wanted.column_names), wanted)
    report = log.verify()
    assert report.legal, report.problems
    payload = with_own([(own[dict(row)["n"]], row) for _, row in model.messages], kinds).to_pylist()
    stored = zip((time for time, _ in model.messages), payload, strict=True)
    assert report.canonical_hash == digest(stored, model.frontier, 2)


@pytest.mark.parametrize("through", ["sink", "foreachBatch"])
@few(2)
@given(
    history=histories(arity=2, max_commits=8),
    delivery=st.sampled_from(["complete", "arrival"]),
    rng=st.randoms(use_true_random=False),
)
def test_events_of_product_times_make_a_log_that_says_the_same(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    through: str,
    history: History,
    delivery: str,
    rng: random.Random,
) -> None:
    folder = tmp_path_factory.mktemp("events")
    path, copy = str(folder / "log"), str(folder / "copy")
    log = spark_timely.create_log(path, PAYLOAD_SCHEMA, times=history.kinds, streams=len(history.streams))
    model = ReplayModel(history.minimum, len(history.streams))
    limit = {"maxTimesPerTrigger": "2"} if delivery == "complete" else {"maxFilesPerTrigger": "2"}
    middle = rng.randint(0, len(history.commits))
    with session_zone(spark, rng.choice(ZONES)):
        for commits in (history.commits[:middle], history.commits[middle:]):
            for commit in commits:
                write_commit(log, commit.stream, commit.messages, commit.progress, history.kinds)
                model.apply(commit.stream, commit.messages, commit.progress)
            source = spark.readStream.format("timely").options(content="events", delivery=delivery, **limit)
            start(source.load(path), through, copy, str(folder / "checkpoint"), {"frontier": "events"})
    found = spark_timely.open_log(copy)
    assert frontier_set(found.frontier()) == model.frontier()
    report = found.verify()
    assert report.legal, report.problems
    closed = [(time, dict(row)) for time, rows in model.closed().items() for row in rows]
    assert report.canonical_hash == digest(closed, model.frontier(), 2)
    stored = sum(map(len, (model.closed() if delivery == "complete" else model.messages).values()))
    assert found.messages().num_rows == stored, "what is not complete is handed on by arrival only"


DAYS = [dt.date(2024, 3, day) for day in (29, 30, 31)]
MOMENTS = [dt.datetime(2024, 3, 31, hour, tzinfo=dt.UTC) for hour in (0, 1, 2, 23)]
GRID = list(itertools.product(range(len(DAYS)), range(len(MOMENTS))))
CLOSED_AT = [(1, 3), (2, 1)]  # of the grid: not beyond any of these is complete


def as_json(places: list[tuple[int, int]]) -> str:
    """Write times of the grid as options take them."""
    return json.dumps([[DAYS[a].isoformat(), MOMENTS[b].isoformat()] for a, b in places])


@pytest.fixture(scope="module")
def grid_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[tuple[Time, str, int]]]:
    """Return a collection log over date × timestamp, and its updates: time of the grid, word, diff."""
    rng = random.Random(5)
    updates: list[tuple[Time, str, int]] = []
    for time in GRID * 3:
        word = rng.choice(["ja", "nein", "jein"])
        updates.append((time, word, 2))
        later = [other for other in GRID if less_equal(time, other)]
        updates.append((rng.choice(later), word, -1))
    path = str(tmp_path_factory.mktemp("grid") / "log")
    schema = pa.schema([("word", pa.string())])
    log = spark_timely.create_log(path, schema, times=("date", "timestamp"), kind="collection")
    writer = log.writer(owner="o")
    for part in (updates[::2], updates[1::2]):
        writer.append(
            pa.table(
                {
                    "_time_0": pa.array([DAYS[time[0]] for time, _, _ in part], pa.date32()),
                    "_time_1": pa.array([MOMENTS[time[1]] for time, _, _ in part], pa.timestamp("us", "UTC")),
                    "word": [word for _, word, _ in part],
                    "_diff": pa.array([diff for _, _, diff in part], pa.int64()),
                }
            )
        )
    log.advance("main", json.loads(as_json(CLOSED_AT)))
    return path, updates


def by_time(rows: list[dict[str, Any]]) -> Counter[tuple[Time, str]]:
    """Sum up diffs per time of the grid and word."""
    found: Counter[tuple[Time, str]] = Counter()
    for row in rows:
        time = (DAYS.index(row["_time_0"]), MOMENTS.index(row["_time_1"].astimezone(dt.UTC)))
        found[time, row["word"]] += row["_diff"]
    return Counter({key: n for key, n in found.items() if n})


def expected(
    updates: list[tuple[Time, str, int]], lower: list[tuple[int, int]], upper: list[tuple[int, int]]
) -> Counter[tuple[Time, str]]:
    found: Counter[tuple[Time, str]] = Counter()
    for time, word, diff in updates:
        if is_beyond(time, lower) and not is_beyond(time, upper):
            found[time, word] += diff
    return Counter({key: n for key, n in found.items() if n})


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sum up diffs within each split: one row per time and word."""
    for rows in read_splits(batches, columns=["_time_0", "_time_1", "word", "_diff"]):
        sums = rows.group_by(["_time_0", "_time_1", "word"]).aggregate([("_diff", "sum")])
        yield from sums.rename_columns(["_time_0", "_time_1", "word", "_diff"]).to_batches()


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (None, None),
        ([(1, 0), (0, 2)], None),
        (None, [(0, 3), (1, 1), (2, 0)]),
        ([(0, 2), (1, 1)], [(2, 0), (1, 2)]),
    ],
)
def test_reads_between_antichains_hold_exactly_the_times_between(
    spark: SparkSession,
    grid_log: tuple[str, list[tuple[Time, str, int]]],
    lower: list[tuple[int, int]] | None,
    upper: list[tuple[int, int]] | None,
) -> None:
    path, updates = grid_log
    options = {"includeTime": "true", "workers": "3"}
    if lower:
        options["startingFrontier"] = as_json(lower)
    if upper:
        options["upTo"] = as_json(upper)
    # What is beyond the log's frontier is never given out, whatever was asked for.
    ends = [*CLOSED_AT, *(upper or [])]
    wanted = expected(updates, lower or [(0, 0)], ends)
    assert wanted, "a range with something in it"
    with session_zone(spark, "America/Los_Angeles"):
        rows = spark.read.format("timely").options(**options).load(path)
        assert by_time(rows.toArrow().to_pylist()) == wanted
        splits = spark.read.format("timely").options(**options, content="splits", splitBy="time").load(path)
        sums = splits.mapInArrow(counted, "_time_0 date, _time_1 timestamp, word string, _diff long").toArrow()
        keys = [(row["_time_0"], row["_time_1"], row["word"]) for row in sums.to_pylist()]
        assert len(set(keys)) == len(keys), "each time is in one split"
        assert by_time(sums.to_pylist()) == wanted


@pytest.mark.parametrize("at", [(0, 1), (1, 2), (2, 0)])
def test_contents_as_of_a_product_time_are_the_updates_before(
    spark: SparkSession, grid_log: tuple[str, list[tuple[Time, str, int]]], at: tuple[int, int]
) -> None:
    path, updates = grid_log
    contents: Counter[str] = Counter()
    for time, word, diff in updates:
        if less_equal(time, at):
            contents[word] += diff
    contents = Counter({word: n for word, n in contents.items() if n})
    time = json.loads(as_json([at]))[0]
    with session_zone(spark, "America/Los_Angeles"):
        rows = spark_timely.snapshot(spark, path, time, diffs=True).toArrow().to_pylist()
        assert {row["word"]: row["_diff"] for row in rows} == contents
        read = spark.read.format("timely").options(asOf=json.dumps(time), includeTime="true").load(path)
        found = by_time(spark_timely.consolidate(read).toArrow().to_pylist())
    # What follows is told at its join with the time of the contents, the first at which it is beyond it: summed up
    # to any later time it gives the contents as of that one.
    joined = [((max(time[0], at[0]), max(time[1], at[1])), word, diff) for time, word, diff in updates]
    assert found == expected(joined, [(0, 0)], CLOSED_AT)
    assert {word: n for (time, word), n in found.items() if time == at} == contents


def test_stream_ends_at_an_antichain_and_continues_without_it(
    spark: SparkSession, grid_log: tuple[str, list[tuple[Time, str, int]]], tmp_path: Path
) -> None:
    path, updates = grid_log
    batches: dict[int, list[dict[str, Any]]] = {}

    def keep(df: DataFrame, batch_id: int) -> None:
        batches[batch_id] = df.toArrow().to_pylist()

    def run(**options: str) -> None:
        source = spark.readStream.format("timely").options(includeTime="true", maxTimesPerTrigger="3", **options)
        writer = source.load(path).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        writer.start().awaitTermination()

    until = [(0, 3), (1, 1)]
    with session_zone(spark, "America/Los_Angeles"):
        run(upTo=as_json(until))
        assert by_time(list(itertools.chain(*batches.values()))) == expected(updates, [(0, 0)], until)
        run()
    found: Counter[tuple[Time, str]] = Counter()
    seen: set[Time] = set()
    for _, rows in sorted(batches.items()):
        part = by_time(rows)
        here = {time for time, _ in part}
        assert not here & seen, "a time comes whole, in one micro-batch"
        seen |= here
        found.update(part)
    assert found == expected(updates, [(0, 0)], CLOSED_AT)


def test_command_line_speaks_of_mixed_product_times(
    grid_log: tuple[str, list[tuple[Time, str, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, updates = grid_log
    assert main(["verify", path, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    days = [(day - dt.date(1970, 1, 1)).days for day in DAYS]
    micros = [int(moment.timestamp()) * 1_000_000 for moment in MOMENTS]
    numbers = [((days[a], micros[b]), {"word": word}, diff) for (a, b), word, diff in updates]
    assert said["hash"] == digest(numbers, [(days[a], micros[b]) for a, b in CLOSED_AT], 2)
    assert said["frontier"] == [["2024-03-30", "2024-03-31T23:00:00Z"], ["2024-03-31", "2024-03-31T01:00:00Z"]]
    # Exit code 0: complete. The second is beyond neither element by one coordinate alone.
    for place, code in (((1, 2), 0), ((2, 0), 0), ((1, 3), 1), ((2, 1), 1), ((2, 3), 1)):
        assert main(["frontier", path, "--passed", json.dumps(json.loads(as_json([place]))[0])]) == code, place
    capsys.readouterr()
