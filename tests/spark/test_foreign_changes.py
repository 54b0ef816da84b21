"""What delta-spark's statements do to a log: maintenance changes no answer, what changes rows is refused by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import spark_timely
from spark_timely.errors import DataLossError, ForeignChangeError
from spark_timely.spark.answers.mirror import mirror_to
from tests.faults.harness import long_lane

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("v", pa.int64())])


class World:
    """A collection, a query that replays it, and a mirror of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.log = spark_timely.create_log(folder / "log", SCHEMA, minimum=(0,), kind="collection", merge_every=None)
        self.path = self.log.path
        self.table = f"delta.`{self.path}`"
        self.mirror = mirror_to(spark, self.path, str(folder / "mirror"))
        self.rows: Counter[int] = Counter()
        self.grow(0, 4)

    def grow(self, first: int, last: int) -> None:
        log = spark_timely.open_log(self.path, merge_every=None)
        for time in range(first, last):
            rows = [10 * time, 10 * time + 1]
            log.writer(owner="me").append(
                pa.table({"_time": [time] * 2, "v": rows, "_diff": [1, 1]}), advance_to=time + 1
            )
            self.rows.update(rows)

    def replayed(self, **options: str) -> Counter[int]:
        """Let the query replay what has come, and return all that it has delivered."""
        frame = self.spark.readStream.format("timely").options(**options).load(self.path)
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "replayed"))
        )
        query.awaitTermination()
        return self.counted(self.spark.read.parquet(str(self.folder / "replayed")))

    def counted(self, frame: Any) -> Counter[int]:
        return Counter(row[0] for row in frame.select("v").collect())

    def read(self) -> Counter[int]:
        return self.counted(self.spark.read.format("timely").load(self.path))

    def mirrored(self) -> Counter[int]:
        self.mirror.step()
        return Counter(row[0] for row in self.spark.read.format("delta").load(str(self.folder / "mirror")).collect())

    def right(self) -> None:
        assert self.read() == self.rows
        assert self.replayed() == self.rows
        assert self.mirrored() == self.rows
        assert spark_timely.open_log(self.path).verify().legal

    def version(self) -> int:
        return spark_timely.open_log(self.path).core.version

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.format(t=self.table))


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(spark, tmp_path_factory.mktemp("world"))
    made.right()
    return made


# Those that delta-rs does in the same way (`tests/conformance/test_foreign_changes.py`) are in the long lane.
SHORT = ("delete", "a vector that is purged", "order", "a delete and its restore")


def chosen(statements: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: each for name, each in statements.items() if long_lane() or name in SHORT}


HARMFUL = {
    "delete": ["DELETE FROM {t} WHERE _event = 'message' AND v = 41"],
    "update": ["UPDATE {t} SET v = v + 1 WHERE _event = 'message' AND v = 41"],
    "insert": ["INSERT INTO {t} SELECT * FROM {t} WHERE _event = 'message' AND v = 41"],
    "merge": [
        "MERGE INTO {t} t USING (SELECT 41 k) s ON t.v = s.k AND t._event = 'message'"
        " WHEN MATCHED THEN UPDATE SET v = 7"
    ],
    "progress": ["UPDATE {t} SET _time = 100 WHERE _event = 'progress' AND _count > 0"],
    "a vector that is purged": [
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "DELETE FROM {t} WHERE _event = 'message' AND v = 41",
        "REORG TABLE {t} APPLY (PURGE)",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
    ],
}


def test_what_delta_spark_changes_is_refused_by_name(world: World) -> None:
    last = 4
    for name, statements in chosen(HARMFUL).items():
        world.grow(last, last + 1)
        last += 1
        whole = world.version()
        world.sql(*(statement.replace("41", str(10 * last - 9)) for statement in statements))
        with pytest.raises(ForeignChangeError, match="found rows changed by another program: version="):
            spark_timely.open_log(world.path).messages()
        if name == "delete":
            for ask in (world.read, world.replayed):
                with pytest.raises(PySparkException, match="TIMELY_FOREIGN_CHANGE"):
                    ask()
            with pytest.raises(ForeignChangeError):
                world.mirror.step()
        world.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {whole}")
        assert spark_timely.open_log(world.path).messages().num_rows == world.rows.total(), name
    world.right()


def test_what_delta_spark_deleted_is_accepted(world: World) -> None:
    last = max(world.rows) // 10 + 1
    world.grow(last, last + 1)
    world.sql(f"DELETE FROM {{t}} WHERE _event = 'message' AND v = {10 * last}", "VACUUM {t}")
    with pytest.raises(ForeignChangeError) as refused:
        spark_timely.open_log(world.path).messages()
    token = str(refused.value.context["token"])
    spark_timely.open_log(world.path).accept_change(token)
    del world.rows[10 * last]
    assert world.read() == world.rows
    with pytest.raises(PySparkException, match=rf"accepted in log .*1 messages less.*acceptChange={token}"):
        world.replayed()
    with pytest.raises(DataLossError, match=f"accept_change='{token}'"):
        world.mirror.step()
    assert world.replayed(acceptChange=token) == world.rows
    assert (
        mirror_to(world.spark, world.path, str(world.folder / "mirror"), accept_change=token).step().how == "replaced"
    )
    world.grow(last + 1, last + 2)
    world.replayed(acceptChange=token)
    world.right()


def test_what_delta_spark_maintains_changes_no_answer(world: World) -> None:
    last = max(world.rows) // 10 + 1
    before = world.log.core.version
    statements = {
        "optimize": ["OPTIMIZE {t}"],
        "order": ["OPTIMIZE {t} ZORDER BY (v)"],
        "a purge of nothing": ["REORG TABLE {t} APPLY (PURGE)"],
        "vacuum": ["VACUUM {t}"],
        "a column": ["ALTER TABLE {t} ADD COLUMN (w STRING)", "ALTER TABLE {t} ALTER COLUMN w COMMENT 'why'"],
        "a delete and its restore": ["DELETE FROM {t} WHERE v = 1"],
    }
    for name, each in chosen(statements).items():
        world.grow(last, last + 2)
        last += 2
        whole = world.version()
        world.sql(*each)
        if "restore" in name:
            world.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {whole}")
        assert spark_timely.open_log(world.path).messages().num_rows == world.rows.total(), name
    assert world.version() > before
    world.right()
    # Such a table can be read, and not written (delta-rs): what backfills the numbers of rows adds files that are live.
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    assert spark_timely.open_log(world.path).messages().num_rows == world.rows.total()
    assert (
        world.spark.read.format("delta").load(world.path).where(F.col("_event") == "message").count()
        == world.rows.total()
    )
