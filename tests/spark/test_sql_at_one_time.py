"""SQL over collections at one time: what it gives is what plain Python makes of their updates, at every time."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.errors import InvalidUsageError, NotBeyondError, SinceViolationError
from spark_timely.log.timestamp import explain_timestamp
from spark_timely.spark.answers.sql import sql
from tests.faults.harness import long_lane

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ORDERS = pa.schema([("id", pa.int64()), ("currency", pa.string()), ("amount", pa.float64())])
RATES = pa.schema([("currency", pa.string()), ("rate", pa.int64())])

Update = tuple[int, int, tuple[Any, ...]]  # time, diff, row


def appended(log: Log, updates: list[Update], upper: int) -> None:
    """Append some updates, and close all times before the upper."""
    names = log.schema.names
    columns: dict[str, Any] = {"_time": pa.array([time for time, _, _ in updates], pa.int64())}
    if log.kind == "collection":
        columns["_diff"] = pa.array([diff for _, diff, _ in updates], pa.int64())
    columns |= {
        name: pa.array([row[at] for _, _, row in updates], log.schema.field(name).type) for at, name in enumerate(names)
    }
    log.writer(owner="tests").append(pa.table(columns), advance_to=upper)


def contents(updates: list[Update], time: int) -> Counter[tuple[Any, ...]]:
    """Return what a collection holds at a time."""
    found: Counter[tuple[Any, ...]] = Counter()
    for at, diff, row in updates:
        if at <= time:
            found[row] += diff
    return +found


class Two:
    """A collection of orders that changes, and one of rates, closed at other times."""

    def __init__(self, folder: Path, seed: int, *, kinds: tuple[str, str] = ("collection", "collection")) -> None:
        rng = random.Random(seed)
        self.logs: dict[str, Log] = {}
        self.updates: dict[str, list[Update]] = {}
        for name, schema, kind, upper in (("orders", ORDERS, kinds[0], 9), ("rates", RATES, kinds[1], 7)):
            log = spark_timely.create_log(folder / name, schema, minimum=(0,), kind=kind)
            self.logs[name], self.updates[name] = log, []
            held: Counter[tuple[Any, ...]] = Counter()
            for time in range(upper):
                step: list[Update] = []
                for _ in range(rng.randrange(4)):
                    if kind == "collection" and held and rng.random() < 0.4:
                        row = rng.choice(sorted(held.elements(), key=repr))
                        held[row] -= 1
                        held = +held
                        step.append((time, -1, row))
                    else:
                        row = self._row(name, rng)
                        held[row] += 1
                        step.append((time, 1, row))
                self.updates[name] += step
                if rng.random() < 0.7 or time == upper - 1:
                    pending = [each for each in self.updates[name] if each[0] >= self._closed(log)]
                    appended(log, pending, time + 1)

    @staticmethod
    def _closed(log: Log) -> int:
        (element,) = log.frontier().elements
        return element[0]

    @staticmethod
    def _row(name: str, rng: random.Random) -> tuple[Any, ...]:
        currency = rng.choice(["€", "$", None, "it's"])
        if name == "rates":
            return currency, rng.randrange(3)
        return rng.randrange(3), currency, rng.choice([0.0, -0.0, 1.5, float("nan"), None])

    def joined(self, time: int) -> Counter[tuple[Any, ...]]:
        """Return how often each pair of an order's id and a rate is there."""
        found: Counter[tuple[Any, ...]] = Counter()
        rates = contents(self.updates["rates"], time)
        for (number, currency, _), n in contents(self.updates["orders"], time).items():
            for (other, rate), m in rates.items():
                if currency is not None and currency == other:
                    found[number, rate] += n * m
        return found


JOIN = "SELECT o.id, rate FROM orders o JOIN rates USING (currency)"
KINDS = [("collection", "collection"), ("stream", "collection")]


def rows(spark: SparkSession, text: str, names: Mapping[str, Any], **options: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in sql(spark, text, names=names, **options).collect())


@pytest.mark.parametrize(
    ("seed", "kinds"),
    # In the short lane each with a history of its own.
    list(itertools.product(range(12), KINDS)) if long_lane() else list(enumerate(KINDS)),
)
def test_join_at_each_time_is_what_python_makes_of_it(
    spark: SparkSession, tmp_path: Path, seed: int, kinds: tuple[str, str]
) -> None:
    two = Two(tmp_path, seed, kinds=kinds)
    for time in range(7):
        assert rows(spark, JOIN, two.logs, as_of=time) == two.joined(time), f"{seed=} {time=}"
    assert rows(spark, JOIN, two.logs) == two.joined(6)  # the newest that is complete in both
    assert rows(spark, JOIN, two.logs, as_of_at_least=2) == two.joined(2)
    for log in two.logs.values():
        log.compact()
    assert rows(spark, JOIN, {name: log.path for name, log in two.logs.items()}) == two.joined(6)


def test_paths_in_the_text_and_the_time_itself(spark: SparkSession, tmp_path: Path) -> None:
    two = Two(tmp_path, 3)
    text = f"""
        WITH o AS (SELECT * FROM `{tmp_path}/orders`)
        SELECT (SELECT count(*) FROM o) AS n, (SELECT count(*) FROM `{two.logs["rates"].path}`) AS m, :time AS at
    """
    n, m = (contents(two.updates[name], 6).total() for name in ("orders", "rates"))
    frame = sql(spark, text)
    assert [tuple(row) for row in frame.collect()] == [(n, m, 6)]
    assert frame.schema["at"].dataType.simpleString() == "bigint"


def test_frame_keeps_its_time_while_logs_move_on(spark: SparkSession, tmp_path: Path) -> None:
    two = Two(tmp_path, 4)
    frame, expected = sql(spark, JOIN, names=two.logs), two.joined(6)
    appended(two.logs["rates"], [(7, 1, ("€", 5)), (7, 1, ("$", 5))], 12)
    appended(two.logs["orders"], [(9, 1, (7, "€", 1.0))], 12)
    for log in two.logs.values():
        log.allow_compaction([11])
        log.compact()
        log.vacuum()
    assert Counter(tuple(row) for row in frame.collect()) == expected
    assert Counter(tuple(row) for row in frame.where("true").collect()) == expected
    with pytest.raises(SinceViolationError, match=r"as of 6: found since=\[11\] and upper=\[12\]"):
        sql(spark, JOIN, names=two.logs, as_of=6)
    assert explain_timestamp(two.logs).time == (11,)
    for log in two.logs.values():
        log.vacuum(older_than="0s")
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FAILED_READ_FILE"):
        frame.where("id >= 0").collect()  # an error, and no row less


def test_time_that_is_open_is_waited_for_and_retained(spark: SparkSession, tmp_path: Path) -> None:
    two = Two(tmp_path, 5)
    with pytest.raises(NotBeyondError, match=r"found upper=\[7\] and since=\[0\] of log .*rates.* time=7 after 0 sec"):
        sql(spark, JOIN, names=two.logs, as_of=7, timeout_s=0)
    seen: list[set[str]] = []
    rates = two.logs["rates"]
    inner = spark_timely.open_log(rates.path)
    refresh: Callable[[], bool] = rates.refresh

    def refreshed() -> bool:
        waits = any(name.startswith("query ") for names in seen for name in names)
        if waits and rates.frontier() == inner.frontier():
            inner.allow_compaction([6])
            appended(inner, [(7, 1, ("€", 5))], 8)
        found = refresh()
        seen.append(set(rates.retainers()))
        return found

    rates.refresh = refreshed  # type: ignore[method-assign]
    assert rows(spark, JOIN, two.logs, as_of=7) == two.joined(7) + Counter(
        (number, 5) for number, currency, _ in contents(two.updates["orders"], 7).elements() if currency == "€"
    )
    del rates.refresh
    rates.refresh()
    assert not rates.retainers()


def test_without_a_time_nothing_is_waited_for_as_in_a_peek(spark: SparkSession, tmp_path: Path) -> None:
    two = Two(tmp_path, 8)
    new = spark_timely.create_log(tmp_path / "new", RATES, minimum=(0,), kind="collection")
    said = r"found no time that is complete: since=\[0\], upper=\[0\]"
    for ask in (
        lambda: spark_timely.peek(new),
        lambda: sql(spark, "SELECT * FROM new", names={"new": new}),
        lambda: sql(spark, JOIN, names={"orders": two.logs["orders"], "rates": new}),
        lambda: spark_timely.copy_to(spark, new, tmp_path / "copy"),
    ):
        with pytest.raises(NotBeyondError, match=said) as error:
            ask()
        assert (error.value.hint or "").startswith("wait for the first commit that closes a time, or give ")
    two.logs["orders"].allow_compaction([8])
    with pytest.raises(NotBeyondError, match=r"since=\[8\], upper=\[7\], held back by log '.*rates'"):
        sql(spark, JOIN, names=two.logs)
    with pytest.raises(NotBeyondError, match="have not passed time=8 after 0 seconds"):
        sql(spark, JOIN, names=two.logs, as_of_at_least=0, timeout_s=0)


def test_views_are_gone_and_names_are_not_used_twice(spark: SparkSession, tmp_path: Path) -> None:
    two = Two(tmp_path, 6)
    before = {each.name for each in spark.catalog.listTables()}
    one = sql(spark, "SELECT count(*) FROM rates", names=two.logs)
    assert {each.name for each in spark.catalog.listTables()} == before
    with pytest.raises(Exception, match="nobody"):
        sql(spark, "SELECT nobody FROM rates", names=two.logs)
    assert {each.name for each in spark.catalog.listTables()} == before
    assert one.first()[0] == contents(two.updates["rates"], 6).total()


def test_stream_that_has_forgotten_is_refused_unless_it_is_meant(spark: SparkSession, tmp_path: Path) -> None:
    two = Two(tmp_path, 7, kinds=("stream", "collection"))
    two.logs["orders"].allow_compaction([4])
    text = "SELECT id FROM orders"
    with pytest.raises(SinceViolationError, match=r"found since=\[4\] and upper=\[9\] of stream log .*forgotten=True"):
        sql(spark, text, names=two.logs)
    kept = Counter((row[0],) for time, _, row in two.updates["orders"] if time >= 4)
    assert rows(spark, text, two.logs, forgotten=True) == kept


def test_row_that_was_never_added_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "rates", RATES, minimum=(0,), kind="collection")
    appended(log, [(0, 1, ("€", 1)), (1, -1, ("$", 1))], 3)
    assert rows(spark, "SELECT rate FROM r", {"r": log}, as_of=0) == Counter([(1,)])
    with pytest.raises(Exception, match="TIMELY_NEGATIVE_MULTIPLICITY"):
        rows(spark, "SELECT rate FROM r", {"r": log})


def test_product_times_are_read_at_the_time_that_is_given(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    log = spark_timely.create_log(tmp_path / "log", schema, times=("long", "long"), minimum=(0, 0), kind="collection")
    updates = [(a, b, diff, v) for a in range(3) for b in range(3) for diff, v in ((1, a + b), (1, 9), (-1, 9))]
    table = pa.table({
        "_time_0": [a for a, *_ in updates], "_time_1": [b for _, b, *_ in updates],
        "_diff": [d for _, _, d, _ in updates], "v": [v for *_, v in updates],
    })  # fmt: skip
    log.writer(owner="tests").append(table, advance_to=[(5, 0), (0, 5)])
    with pytest.raises(InvalidUsageError, match="give as_of"):
        sql(spark, "SELECT v FROM l", names={"l": log})
    found = rows(spark, "SELECT v FROM l", {"l": log}, as_of=(1, 1))
    assert found == Counter((a + b,) for a in range(2) for b in range(2))


@pytest.fixture
def one(tmp_path: Path) -> Iterator[dict[str, Log]]:
    """Return one log under a name."""
    log = spark_timely.create_log(tmp_path / "rates", RATES, minimum=(0,))
    appended(log, [(0, 1, ("€", 1))], 3)
    yield {"rates": log}
    assert log.messages().num_rows == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("DELETE FROM rates", "found statement of kind 'DELETE'"),
        ("INSERT INTO rates SELECT * FROM rates", "found statement of kind 'INSERT'"),
        ("DROP TABLE rates", "found statement of kind 'DROP'"),
        ("SELECT 1; SELECT 2", "found 2 statements"),
        ("SELECT 1", "found no table of a log"),
        ("SELECT * FROM other", "found table 'other' that is not named"),
        ("SELECT * FROM `db`.rates", "found table '`db`.rates' that is not named"),
        ("SELECT now(), * FROM rates", "found the clock 'now'"),
        ("SELECT rand(), * FROM rates", "found random 'rand'"),
        ("SELECT * FROM rates WHERE rate > :least", "parameter :least"),
        ("SELECT * FROM `/a``b`", "found a backquote in path '/a`b'"),
        ("SELECT * FROM (SELECT", "could not run a query at one time: found"),
        (7, "found text=7"),
    ],
)
def test_text_that_is_no_select_over_logs_is_refused(
    spark: SparkSession, one: dict[str, Log], text: Any, found: str
) -> None:
    with pytest.raises(InvalidUsageError, match="could not run a query at one time") as error:
        sql(spark, text, names=one)
    assert found in str(error.value)
