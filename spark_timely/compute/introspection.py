"""Introspection: the state of an instance as relations that can be queried.

The instance puts rows in; people read them by `Handle.show` and the verb ``instance``, and dataflows can import them
(`spark_timely.compute.drive.relations` keeps them as logs). Each relation is a collection: its current rows, and the
changes that led to them. Some rows come of commands and of responses, others were observed by the driver of the
instance. Times are JSON texts, one row for each element of a frontier: a collection of which nothing was reported shows
the minimum, one that is complete shows no row.

Invariants
----------
1. The changes, added up, are the current rows, in each order in which they may be cut.
2. A row that is replaced is retracted before its successor is inserted.
3. What nobody takes is bounded: changes that cancel out are forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import pyarrow as pa

from spark_timely.errors import MissingError, shown

__all__ = ["RELATIONS", "Introspection"]

_text, _count, _flag = pa.string(), pa.int64(), pa.bool_()


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


RELATIONS: Final[Mapping[str, pa.Schema]] = MappingProxyType(
    {
        # The next times at which a collection may change.
        "frontiers": pa.schema([_required("export_id", _text), _required("time", _text)]),
        "import_frontiers": pa.schema(
            [_required("export_id", _text), _required("import_name", _text), _required("time", _text)]
        ),
        # State: suspended, queued, hydrating or hydrated.
        "hydration": pa.schema(
            [_required("export_id", _text), _required("state", _text), _required("hydrated", _flag)]
        ),
        # Those without a response. Type: index, log or introspection.
        "peeks": pa.schema(
            [
                _required("peek_id", _text),
                _required("object_id", _text),
                _required("type", _text),
                _required("time", _text),
            ]
        ),
        "exports": pa.schema([_required("export_id", _text), _required("dataflow_id", _count)]),
        "dataflows": pa.schema([_required("dataflow_id", _count), _required("name", _text)]),
        "operators": pa.schema(
            [
                _required("dataflow_id", _count),
                _required("operator", _text),
                _required("kind", _text),
                _required("inputs", _text),
            ]
        ),
        "arrangement_sizes": pa.schema(
            [
                _required("dataflow_id", _count),
                _required("operator", _text),
                _required("records", _count),
                _required("batches", _count),
                _required("size_bytes", _count),
            ]
        ),
        "errors": pa.schema([_required("export_id", _text), _required("count", _count), _required("text", _text)]),
        # In units of the time: how far the furthest import is ahead. Null where that is no number.
        "lag": pa.schema([_required("export_id", _text), pa.field("lag", _count), pa.field("slowest_import", _text)]),
        # How many answers took at most that long, and longer than half of it.
        "latency": pa.schema(
            [_required("object_id", _text), _required("at_most_s", pa.float64()), _required("count", _count)]
        ),
        "history": pa.schema([_required("command", _text), _required("count", _count)]),
    }
)
"""The relations and their columns."""

_Row: TypeAlias = "tuple[object, ...]"

# Below this many changes nobody looks whether some cancel out.
_FEW: Final = 1024


class Introspection:
    """The rows of all relations.

    Examples
    --------
    >>> shows = Introspection()
    >>> shows.put("exports", "totals", [("totals", 1)])
    >>> shows.table("exports").to_pylist()
    [{'export_id': 'totals', 'dataflow_id': 1}]
    >>> shows.put("exports", "totals", [])
    >>> shows.take_changes("exports").column("_diff").to_pylist()
    [1, -1]
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[Hashable, tuple[_Row, ...]]] = {name: {} for name in RELATIONS}
        self._changes: dict[str, list[tuple[_Row, int]]] = {name: [] for name in RELATIONS}

    def put(self, relation: str, key: Hashable, rows: Iterable[_Row]) -> None:
        """Replace the rows that a relation has under a key."""
        there = self._rows[relation]
        before, after = there.get(key, ()), tuple(rows)
        if before == after:
            return
        changes = self._changes[relation]
        changes += [(row, -1) for row in before]
        changes += [(row, 1) for row in after]
        if after:
            there[key] = after
        else:
            del there[key]
        if len(changes) > _FEW + 4 * len(there):
            counts: Counter[_Row] = Counter()
            for row, diff in changes:  # few
                counts[row] += diff
            self._changes[relation] = [(row, diff) for row, diff in counts.items() if diff]

    def clear(self, relation: str, keys: Iterable[Hashable]) -> None:
        """Retract all rows under keys."""
        for key in keys:
            self.put(relation, key, ())

    def keys(self, relation: str) -> tuple[Hashable, ...]:
        """Return the keys under which a relation has rows."""
        return tuple(self._rows[relation])

    def table(self, relation: str) -> pa.Table:
        """Return the current rows of a relation.

        Raises
        ------
        MissingError
            If there is no such relation.
        """
        schema = _schema(relation)
        return _table(schema, [row for rows in self._rows[relation].values() for row in rows])

    def take_changes(self, relation: str) -> pa.Table:
        """Return what changed in a relation since the last time: its columns, and `_diff`. It is given once.

        Raises
        ------
        MissingError
            If there is no such relation.
        """
        schema = _schema(relation).append(_required("_diff", _count))
        changes, self._changes[relation] = self._changes[relation], []
        return _table(schema, [(*row, diff) for row, diff in changes])


def _schema(relation: str) -> pa.Schema:
    if relation not in RELATIONS:
        msg = f"could not look at the instance: found relation={shown(relation)}"
        raise MissingError(msg, hint=f"relations are {', '.join(RELATIONS)}")
    return RELATIONS[relation]


def _table(schema: pa.Schema, rows: list[_Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
