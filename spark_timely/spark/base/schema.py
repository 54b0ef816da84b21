"""Schemas of Spark as the Arrow types that a log stores, and back.

The source, the sink and all that reads logs as DataFrames (`spark_timely.spark.frames`) convert by it. Spark's own
mapping is private and depends on the session (zone, large types), so the library keeps its own. One rule for both
directions: what a Delta table can hold and every Delta reader can read.

Invariants
----------
1. `spark_schema(arrow_schema(s))` has the names, types and nullability of `s`.
2. A timestamp is microseconds in UTC, a timestamp without zone is microseconds without zone: never
   nanoseconds, never the session's zone.
3. What the mapping does not know is refused with the column's full name, never stored as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


_UTC = pa.timestamp("us", tz="UTC")


def arrow_type(data_type: DataType, /, *, column: str = "value") -> pa.DataType:
    """Return the Arrow type under which a log stores a Spark type.

    Parameters
    ----------
    data_type : pyspark.sql.types.DataType
        Type of a column or of a nested field.
    column : str
        Full name of the column, for the error.

    Returns
    -------
    pyarrow.DataType

    Raises
    ------
    SchemaMismatchError
        If a Delta table cannot hold the type: intervals, `void`, `variant`, time of day, spatial
        types, collated text and user-defined types.

    Examples
    --------
    >>> from pyspark.sql.types import TimestampType
    >>> str(arrow_type(TimestampType()))
    'timestamp[us, tz=UTC]'
    """
    from pyspark.sql import types as spark

    simple = _ARROW_TYPES.get(type(data_type).__name__)
    if simple is not None:
        if isinstance(data_type, spark.StringType) and _is_collated(data_type):
            raise _unsupported(data_type, column, "cast it to plain string")
        return simple
    if isinstance(data_type, spark.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, spark.ArrayType):
        element = arrow_type(data_type.elementType, column=f"{column}.element")
        return pa.list_(pa.field("element", element, nullable=data_type.containsNull))
    if isinstance(data_type, spark.MapType):
        key = arrow_type(data_type.keyType, column=f"{column}.key")
        value = arrow_type(data_type.valueType, column=f"{column}.value")
        return pa.map_(
            pa.field("key", key, nullable=False),
            pa.field("value", value, nullable=data_type.valueContainsNull),
        )
    if isinstance(data_type, spark.StructType):
        return pa.struct(list(arrow_schema(data_type, prefix=f"{column}.")))
    raise _unsupported(data_type, column, "cast it to a type that a Delta table holds, or drop the column")


def arrow_schema(schema: StructType, /, *, prefix: str = "") -> pa.Schema:
    """Return the Arrow schema under which a log stores rows of a Spark schema.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType
        Schema of a DataFrame, or the type of a nested struct.
    prefix : str
        Put before the names in errors.

    Returns
    -------
    pyarrow.Schema
        Same names and nullability, in the same order. Field metadata is not carried over.

    Raises
    ------
    SchemaMismatchError
        If a type cannot be stored, or two names differ only in case (Delta refuses that).

    Examples
    --------
    >>> from pyspark.sql.types import StructType
    >>> arrow_schema(StructType().add("id", "long", False).add("name", "string"))
    id: int64 not null
    name: string
    """
    seen: dict[str, str] = {}
    for name in schema.names:
        twin = seen.setdefault(name.lower(), name)
        if twin is not name:
            msg = (
                f"could not map the schema: found columns {prefix + twin!r} and {prefix + name!r},"
                " which a Delta table cannot tell apart"
            )
            raise SchemaMismatchError(
                msg,
                hint="rename one of them",
                context={"columns": [prefix + twin, prefix + name]},
            )
    return pa.schema(
        [
            pa.field(
                field.name,
                arrow_type(field.dataType, column=prefix + field.name),
                nullable=field.nullable,
            )
            for field in schema.fields
        ]
    )


def spark_type(data_type: pa.DataType, /, *, column: str = "value") -> DataType:
    """Return the Spark type of a stored Arrow type.

    Parameters
    ----------
    data_type : pyarrow.DataType
        Type of a column of a log.
    column : str
        Full name of the column, for the error.

    Returns
    -------
    pyspark.sql.types.DataType

    Raises
    ------
    SchemaMismatchError
        If Spark has no such type, for instance unsigned integers.

    Examples
    --------
    >>> import pyarrow as pa
    >>> spark_type(pa.timestamp("us", tz="UTC")).simpleString()
    'timestamp'
    """
    from pyspark.sql import types as spark

    simple = _simple_spark_types(data_type)
    if simple is not None:
        made: DataType = getattr(spark, simple)()
        return made
    if pa.types.is_decimal(data_type):
        return spark.DecimalType(data_type.precision, data_type.scale)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type):
        element = data_type.value_field
        return spark.ArrayType(spark_type(element.type, column=f"{column}.element"), element.nullable)
    if pa.types.is_map(data_type):
        return spark.MapType(
            spark_type(data_type.key_type, column=f"{column}.key"),
            spark_type(data_type.item_type, column=f"{column}.value"),
            data_type.item_field.nullable,
        )
    if pa.types.is_struct(data_type):
        return spark_schema(pa.schema(list(data_type)), prefix=f"{column}.")
    msg = f"could not map column {column!r} to Spark: found Arrow type {str(data_type)!r}"
    raise SchemaMismatchError(
        msg,
        hint="store a type that Spark has; unsigned 64-bit integers fit decimal(20, 0)",
        context={"column": column, "type": str(data_type)},
    )


def spark_schema(schema: pa.Schema, /, *, prefix: str = "") -> StructType:
    """Return the Spark schema of rows that a log stores.

    Parameters
    ----------
    schema : pyarrow.Schema
        Stored schema.
    prefix : str
        Put before the names in errors.

    Returns
    -------
    pyspark.sql.types.StructType

    Raises
    ------
    SchemaMismatchError
        If Spark lacks one of the types.

    Examples
    --------
    >>> import pyarrow as pa
    >>> spark_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)])).simpleString()
    'struct<id:bigint>'
    """
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(field.name, spark_type(field.type, column=prefix + field.name), field.nullable)
            for field in schema
        ]
    )


_ARROW_TYPES: dict[str, pa.DataType] = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "StringType": pa.string(),
    # Delta has plain strings only; the length limit is Spark's, checked before rows come here.
    "CharType": pa.string(),
    "VarcharType": pa.string(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": _UTC,
    "TimestampNTZType": pa.timestamp("us"),
}
_SPARK_TYPES: dict[pa.DataType, str] = {
    # Of three names of one type the first.
    **{type_: name for name, type_ in reversed(_ARROW_TYPES.items())},
    pa.large_string(): "StringType",
    pa.string_view(): "StringType",
    pa.large_binary(): "BinaryType",
    pa.binary_view(): "BinaryType",
}


def _simple_spark_types(data_type: pa.DataType) -> str | None:
    if pa.types.is_timestamp(data_type):
        return "TimestampType" if data_type.tz is not None else "TimestampNTZType"
    return "BinaryType" if pa.types.is_fixed_size_binary(data_type) else _SPARK_TYPES.get(data_type)


def _is_collated(data_type: DataType) -> bool:
    # Spark 4.0 and later name the collation in the type; `string` alone is binary order.
    return data_type.simpleString() != "string"


def _unsupported(data_type: DataType, column: str, hint: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"could not map column {column!r}: found Spark type {data_type.simpleString()!r}, which a log cannot hold",
        hint=hint,
        context={"column": column, "type": data_type.simpleString()},
    )
