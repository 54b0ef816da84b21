"""Contents of collections as DataFrames: names and types that need care."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions
from pyspark.sql import types as spark

from spark_timely import errors
from spark_timely.spark.collection import consolidate


class Frame:
    """A DataFrame that notes the names it is asked for."""

    def __init__(self, schema: spark.StructType) -> None:
        self.schema = schema
        self.columns = schema.names
        self.asked: list[tuple[object, ...]] = []

    def groupBy(self, *names: str) -> Frame:
        """Note the names."""
        self.asked.append(names)
        return self

    def select(self, *names: str) -> Frame:
        """Note the names."""
        self.asked.append(names)
        return self

    def agg(self, *_: object) -> Frame:
        """Change nothing."""
        return self

    def where(self, *_: object) -> Frame:
        """Change nothing."""
        return self


class Expression:
    """A column."""

    def alias(self, name: str) -> Expression:
        """Change nothing."""
        del name
        return self


def test_names_with_backticks_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[str] = []

    def note(name: str) -> Expression:
        summed.append(name)
        return Expression()

    monkeypatch.setattr(functions, "sum", note)
    monkeypatch.setattr(functions, "col", note)
    frame: Any = Frame(spark.StructType().add("a`b", "long").add("d`", "long"))
    assert consolidate(frame, diff="d`") is frame
    assert frame.asked == [("`a``b`",), ("`a``b`", "`d```")]
    assert summed == ["`d```"] * 2


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
