"""Texts of functions, expressions and columns, by which fingerprints distinguish operators.

The operators of this folder give them to `dataflow.fingerprint` (`Operator.hashed`), which hashes them:
another text for the same expression would be another fingerprint. `dataflow.equality` compares expressions by them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.log.files.format import canonical_type

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["columns_text", "expression_text", "function_name", "function_text"]


def columns_text(schema: pa.Schema) -> list[list[str]]:
    """Return names and types of columns."""
    return [[field.name, str(canonical_type(field.type, field.name))] for field in schema]


def function_text(function: object) -> list[str]:
    """Return module and qualified name of a function; of an object that can be called, those of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return [str(getattr(named, "__module__", None) or ""), str(named.__qualname__)]


def function_name(function: object) -> str:
    """Return the name of a function, for people."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def expression_text(expression: pc.Expression) -> list[object]:
    """Return an expression as text: its functions and fields, and its literals with their types.

    Its own text will not do: of an array it shows the ends alone, and of a number not the type. Pickled it is a table
    of its literals, whose metadata say what is done to them.
    """
    _, (packed, *_) = expression.__reduce__()
    with pa.ipc.open_file(packed) as reader:
        literals = reader.get_batch(0)
    shape = literals.schema.to_string(truncate_metadata=False)
    return [shape, [repr(column.to_pylist()) for column in literals.columns]]
