"""Values of groups for plans that tests write down."""

from __future__ import annotations

from collections.abc import Iterable

from spark_timely.dataflow.aggregates import Aggregation


def values_of(given: Iterable[tuple[str, str, str | None]]) -> dict[str, Aggregation]:
    """Return aggregations by the name that comes out, from names, kinds and columns."""
    return {name: Aggregation(kind, column) for name, kind, column in given}
