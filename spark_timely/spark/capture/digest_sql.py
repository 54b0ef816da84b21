"""The digest of input rows as Spark SQL, for rows that stay in the JVM.

The scheme ``spark1``. Everything that is hashed goes through Spark's ``xxhash64``, which takes values one after the
other and passes over nulls; what else it lacks is put around it.

- ``name(text)`` = the first 8 bytes, little endian, signed, of the SHA-256 of the UTF-8 text ``"spark_timely spark1|"``
  followed by the text.
- The hash of a row, or of a struct, is ``xxhash64(names, value, value, …)``: its values in order of their names,
  and before them the exclusive or of ``name(n)`` over the names of those that are not null. So a value is bound to
  its name, and a column of nulls is as good as none.
- An integer of any width goes in as BIGINT, a float as DOUBLE; other simple values go in as they are. Spark itself
  takes all NaN for one, and -0.0 for 0.0.
- A struct goes in as its hash. A list goes in as ``xxhash64`` of the list of ``xxhash64(element)``, 0 for null; a map
  as that of the sorted list of ``xxhash64(xxhash64(key), xxhash64(value))``, 0 for a value that is null.
- The digest is two sums over the rows: of the upper and of the lower 32 bits of the hash, both signed. Whole hashes
  would overflow, which is an error under ANSI; halves do not before 2**32 rows, and where they do there is no digest.

It is text, not column objects: text works alike on classic Spark and on Connect. Nothing of it depends on the zone or
on the ANSI mode of the session. The Python writer hashes in another way (`spark_timely.canonical.digest`), since
neither way is fast on the other side; digests of two schemes are not compared.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from spark_timely.canonical.digest import SPARK_SCHEME, RowsDigest
from spark_timely.spark.capture.classify import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.types import DataType, StructType

__all__ = ["digest_in", "digest_sums", "row_hash_sql"]

_MASK64 = (1 << 64) - 1
_INTEGERS = frozenset({"tinyint", "smallint", "int"})
_N_ROWS, _UPPER, _LOWER = "n", "digest_upper", "digest_lower"


def row_hash_sql(columns: Iterable[tuple[str, str]], schema: StructType) -> str:
    """Return the expression of a row's hash, a BIGINT that is never null.

    Parameters
    ----------
    columns : iterable of (str, str)
        The columns that count: name in the log, name in the data. `CaptureLayout.inputs` gives them.
    schema : pyspark.sql.types.StructType
        Schema of the data.

    Returns
    -------
    str

    Examples
    --------
    >>> from pyspark.sql.types import StructType
    >>> row_hash_sql([("b", "B")], StructType().add("B", "integer"))
    "xxhash64(IF(`B` IS NULL, 0L, CAST('-4936473078057790369' AS BIGINT)), CAST(`B` AS BIGINT))"
    """
    return _row([(name, quoted(source), schema[source].dataType) for name, source in columns], depth=0)


def digest_sums(row_hash: str) -> list[str]:
    """Return the aggregates from which `digest_in` makes the digest.

    Parameters
    ----------
    row_hash : str
        Expression of the rows' hash.

    Returns
    -------
    list of str
        Aliased. Spark computes the hash once.
    """
    return [
        f"count(1) AS {_N_ROWS}",
        f"try_sum(shiftright({row_hash}, 32)) AS {_UPPER}",
        f"try_sum(shiftright(shiftleft({row_hash}, 32), 32)) AS {_LOWER}",
    ]


def digest_in(found: Mapping[str, int | None]) -> RowsDigest | None:
    """Return the digest in a row of aggregates; None where they were not asked for, or a sum has overflowed.

    Examples
    --------
    >>> digest_in({"n": 2, "digest_upper": -1, "digest_lower": 7}).text
    'spark1:2:ffffffffffffffff0000000000000007'
    >>> digest_in({"n": 2, "digest_upper": None, "digest_lower": 7}) is None
    True
    """
    n_rows, upper, lower = found.get(_N_ROWS), found.get(_UPPER), found.get(_LOWER)
    if n_rows == 0 and _UPPER in found:
        return RowsDigest(scheme=SPARK_SCHEME)
    if n_rows is None or upper is None or lower is None:
        return None
    return RowsDigest(lower & _MASK64, upper & _MASK64, n_rows, SPARK_SCHEME)


def _row(values: Iterable[tuple[str, str, DataType]], depth: int) -> str:
    """Return the hash of values with their names."""
    values = sorted(values, key=lambda value: value[0])
    names = _either([f"IF({value} IS NULL, 0L, CAST('{_name(name)}' AS BIGINT))" for name, value, _ in values])
    return f"xxhash64({', '.join([names, *(_hashable(value, kind, depth) for _, value, kind in values)])})"


def _name(text: str) -> int:
    digest = hashlib.sha256(f"spark_timely spark1|{text}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _either(terms: Sequence[str]) -> str:
    """Return the exclusive or of the terms, halved again and again: Spark walks a chain of thousands by recursion."""
    if len(terms) < 2:
        return "".join(terms) or "0L"
    half = len(terms) // 2
    return f"({_either(terms[:half])} ^ {_either(terms[half:])})"


def _hashable(value: str, kind: DataType, depth: int) -> str:
    """Return what goes into `xxhash64` for a value; null where the value is."""
    from pyspark.sql import types as spark

    if isinstance(kind, spark.StructType):
        fields = [(f.name, f"{value}.{quoted(f.name)}", f.dataType) for f in kind.fields]
        return f"IF({value} IS NULL, NULL, {_row(fields, depth)})"
    # Names of their own: inner ones would hide outer ones.
    item = f"x{depth}"
    if isinstance(kind, spark.ArrayType):
        element = _or_zero(item, kind.elementType, depth + 1)
        return f"IF({value} IS NULL, NULL, xxhash64(transform({value}, {item} -> {element})))"
    if isinstance(kind, spark.MapType):
        key = _or_zero(f"{item}.key", kind.keyType, depth + 1)
        element = f"xxhash64({key}, {_or_zero(f'{item}.value', kind.valueType, depth + 1)})"
        entries = f"sort_array(transform(map_entries({value}), {item} -> {element}))"
        return f"IF({value} IS NULL, NULL, xxhash64({entries}))"
    if kind.simpleString() in _INTEGERS:
        return f"CAST({value} AS BIGINT)"
    if kind.simpleString() == "float":
        return f"CAST({value} AS DOUBLE)"
    return value


def _or_zero(value: str, kind: DataType, depth: int) -> str:
    return f"IF({value} IS NULL, 0L, xxhash64({_hashable(value, kind, depth)}))"
