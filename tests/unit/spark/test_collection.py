"""Contents of collections as DataFrames: names and types that need care."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as spark

from spark_timely import errors
from spark_timely.log import Cut
from spark_timely.spark.frames.collection import consolidate, snapshot
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain


class Frame:
    """A DataFrame of which nothing is asked but its columns."""

    def __init__(self, schema: spark.StructType) -> None:
        self.schema = schema
        self.columns = schema.names


@pytest.mark.parametrize(
    "kind",
    ["map<string,int>", "array<map<string,int>>", "struct<x:array<struct<y:map<int,int>>>>"],
)
def test_column_with_a_map_is_refused(kind: str) -> None:
    column = spark.MapType(spark.StringType(), spark.LongType())
    types: dict[str, spark.DataType] = {
        "map<string,int>": column,
        "array<map<string,int>>": spark.ArrayType(column),
    }
    deep = spark.StructType().add("x", spark.ArrayType(spark.StructType().add("y", column)))
    frame: Any = Frame(spark.StructType().add("id", "long").add("m", types.get(kind, deep)).add("_diff", "long"))
    with pytest.raises(errors.InvalidUsageError, match=r"column 'm', which is or contains a map — hint: .*map_entries"):
        consolidate(frame)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("/log",), "found no time beside log '/log' — hint: give a time"),
        (('{"version": 1}', 3), "found nothing there"),
        (({"version": 1}, 3), "an older spark-timely wrote this one"),
        (({"version": 1},), "an older spark-timely wrote this one"),
        (("{",), "could not read a cut"),
    ],
)
def test_snapshot_is_of_a_log_at_a_time_or_of_a_cut(asked: tuple[Any, ...], found: str) -> None:
    spark: Any = None  # not asked for anything
    with pytest.raises(errors.TimelyError, match=found):
        snapshot(spark, *asked)


def test_snapshot_of_a_cut_takes_no_time() -> None:
    spark: Any = None
    with pytest.raises(errors.InvalidUsageError, match="found a time beside it, 3 — hint: leave the time out"):
        snapshot(spark, Cut(TimeDomain(("long",)), Antichain.of(3), ()), 3)
