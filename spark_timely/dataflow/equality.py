"""Equality of operators: two are one if kind, parameters, functions and inputs are equal; names do not count.

`Scope` (`dataflow.stream`) looks each new view up by `equality_key`: equal operators of a dataflow are one node of its
graph. So what they compute is computed once, and what they remember is kept once. Unlike a `fingerprint`, which
compares plans of two programs or versions, it is for one process and compares functions as objects: two functions with
one name may do different things, and so may two `functools.partial` of one function. Expressions are compared by all
that they say. A field that follows from the others and from the inputs (`compare=False`) is not compared.

Invariants
----------
1. What is taken for equal gives equal rows: where that is not known, operators differ.
2. Inputs are compared as objects. They are nodes already, so that a comparison does not go down a graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.operators.texts import expression_text
from spark_timely.time.domain import TimeDomain

if TYPE_CHECKING:
    from spark_timely.dataflow.views import View

__all__ = ["equality_key"]

# Of a view: its name is for people, its inputs are compared as objects, and the rest follows from these.
_NOT_COMPARED: Final = frozenset({"name", "inputs", "updates", "rowwise"})
_PLAIN: Final = (str, bytes, int, float, bool, type(None), type, TimeDomain)


class _Object:
    """An object that equals itself alone, whatever it says of that."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


def equality_key(view: View) -> Hashable:
    """Return what two operators have in common if and only if they are the same one.

    Notes
    -----
    Cost: the operator's own parameters; nothing below it.

    Examples
    --------
    >>> from spark_timely.testing import stream_of
    >>> rows = stream_of({"_time": [1], "n": [2]})
    >>> one, same, other = (rows.filter(condition).view for condition in ("n > 1", "n > 1", "n > 2"))
    >>> equality_key(one) == equality_key(same), equality_key(one) == equality_key(other)
    (True, False)
    """
    parameters = [_key(getattr(view, each.name)) for each in fields(view) if each.name not in _NOT_COMPARED]
    return (*(_Object(source) for source in view.inputs), *parameters)


def _key(value: object) -> Hashable:
    """Return what stands for a parameter."""
    if isinstance(value, _PLAIN):
        return type(value), repr(value) if isinstance(value, float) else value
    if isinstance(value, pc.Expression):
        return pc.Expression, repr(expression_text(value))
    if isinstance(value, pa.Schema):
        return pa.Schema, value.serialize().to_pybytes()
    if isinstance(value, pa.DataType):
        return pa.DataType, value
    if isinstance(value, MethodType):  # another object whenever it is asked for
        return MethodType, _Object(value.__self__), _Object(value.__func__)
    if isinstance(value, Mapping):
        return dict, tuple((_key(name), _key(each)) for name, each in value.items())
    if isinstance(value, tuple | list):
        return tuple, tuple(_key(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(_key(getattr(value, each.name)) for each in fields(value) if each.compare)
    return _Object(value)
