"""Schemas on their way between Spark and a log."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from spark_timely.errors import SchemaMismatchError
from spark_timely.spark.base.schema import arrow_schema, arrow_type, spark_schema, spark_type

EVERYTHING = (
    spark.StructType()
    .add("flag", spark.BooleanType(), False)
    .add("tiny", spark.ByteType())
    .add("small", spark.ShortType())
    .add("whole", spark.IntegerType())
    .add("big", spark.LongType())
    .add("single", spark.FloatType())
    .add("double", spark.DoubleType())
    .add("money", spark.DecimalType(20, 4))
    .add("text", spark.StringType())
    .add("blob", spark.BinaryType())
    .add("day", spark.DateType())
    .add("moment", spark.TimestampType())
    .add("wall", spark.TimestampNTZType())
    .add("many", spark.ArrayType(spark.TimestampType(), False))
    .add("pairs", spark.MapType(spark.StringType(), spark.ArrayType(spark.LongType()), False))
    .add(
        "nest",
        spark.StructType()
        .add("at", spark.TimestampType(), False)
        .add("deep", spark.StructType().add("x", spark.DecimalType(5, 2))),
    )
)


def test_schema_there_and_back_is_the_same() -> None:
    assert spark_schema(arrow_schema(EVERYTHING)) == EVERYTHING


def test_schema_agrees_with_sparks_own_mapping_in_utc() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert arrow_schema(EVERYTHING).equals(to_arrow_schema(EVERYTHING, timezone="UTC"))


@pytest.mark.parametrize(
    "unsupported",
    [
        spark.DayTimeIntervalType(),
        spark.YearMonthIntervalType(),
        spark.NullType(),
        spark.VariantType(),
        spark.StringType("UNICODE"),
    ],
)
def test_type_that_no_log_holds_is_refused_with_its_full_name(unsupported: spark.DataType) -> None:
    schema = spark.StructType().add("a", spark.StructType().add("b", unsupported))
    with pytest.raises(SchemaMismatchError, match=r"could not map column 'a\.b': found Spark type .* hint: cast it"):
        arrow_schema(schema)


def test_names_that_differ_in_case_only_are_refused() -> None:
    schema = spark.StructType().add("id", "long").add("ID", "long")
    with pytest.raises(SchemaMismatchError, match="found columns 'id' and 'ID'"):
        arrow_schema(schema)


def test_char_and_varchar_are_stored_as_strings() -> None:
    assert arrow_type(spark.VarcharType(3)) == pa.string()
    assert arrow_type(spark.CharType(3)) == pa.string()


def test_stored_type_that_spark_lacks_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="could not map column 'n' to Spark: found Arrow type 'uint64'"):
        spark_schema(pa.schema([("n", pa.uint64())]))


@pytest.mark.parametrize("stored", [pa.large_string(), pa.string_view(), pa.string()])
def test_text_of_any_arrow_kind_is_a_string(stored: pa.DataType) -> None:
    assert spark_type(stored) == spark.StringType()
