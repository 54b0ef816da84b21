"""Responses of a compute instance to its clients: frontiers of collections, and answers.

Overview
--------
A response states what is true of the instance for the client of its newest session. `Instance.turn` returns them; the
driver hands them to the `Handle`, which turns them into answers. All but `Status` matter for correctness: what a client
was answered stays so.

Transport
---------
The responses of one turn come in an order: those about what was before an event come before those about what was after
it. A turn hands each response out once. The sender ignores that a client has left: nothing is kept for it, and
the next session is answered from the beginning.

Stages
------
1. Before `InitializationComplete`, nothing.
2. Then, of each collection:

   - of an index, a log, and the introspection: `Frontiers`, the first at or beyond its as_of, then strict advances
     only, until the empty frontier, which says that it is complete;
   - of a subscribe: `SubscribeBatch`, contiguous from the minimum on. Their uppers are its frontier;
   - of a copy-to: exactly one `CopyToResponse`;
   - where it is dropped before it was complete: `Dropped`, once. A copy-to answers ``dropped`` in its place.

3. Of each peek, exactly one `PeekResponse`, in whatever stage the peek came. A peek of an earlier session has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from spark_timely.time.antichain import Antichain

__all__ = [
    "CopyToResponse",
    "Dropped",
    "Frontiers",
    "PeekResponse",
    "Response",
    "Status",
    "SubscribeBatch",
]


@dataclass(frozen=True, slots=True)
class Frontiers:
    """State how far a collection is: times not at or beyond the frontier are final. Empty: complete.

    Examples
    --------
    >>> Frontiers("totals", Antichain.of(8)).frontier
    Antichain.of(8)
    """

    id: str
    frontier: Antichain


@dataclass(frozen=True, slots=True)
class PeekResponse:
    """Answer a peek.

    Attributes
    ----------
    id : str
        Of the peek.
    outcome : "rows", "error" or "canceled"
    rows : object
        What the driver gave as the answer.
    error : str or None
    traceparent : str or None
        As it came with the peek.
    cause : object
        What was raised, handed through, where that is known.
    """

    id: str
    outcome: Literal["rows", "error", "canceled"]
    rows: object = None
    error: str | None = None
    traceparent: str | None = None
    cause: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class SubscribeBatch:
    """Give all updates of a subscribe from a lower to an upper frontier.

    Attributes
    ----------
    id : str
    lower, upper : Antichain
        Lower bound, inclusive; upper bound, exclusive. The first lower is the minimum.
    updates : object
        What the driver gave; None with an error.
    error : str or None
        In place of the updates.
    cause : Exception or None
        The error itself, where the driver gave it.
    """

    id: str
    lower: Antichain
    upper: Antichain
    updates: object = None
    error: str | None = None
    cause: Exception | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """State that a collection was dropped before it was complete, at the frontier that was reported last.

    The minimum stands for no report.
    """

    id: str
    frontier: Antichain


@dataclass(frozen=True, slots=True)
class CopyToResponse:
    """Answer a copy-to.

    Attributes
    ----------
    id : str
    outcome : "rows", "error" or "dropped"
    rows : int or None
        Number of rows that were written.
    error : str or None
    cause : Exception or None
        As of `SubscribeBatch`.
    """

    id: str
    outcome: Literal["rows", "error", "dropped"]
    rows: int | None = None
    error: str | None = None
    cause: Exception | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """State whether an operator of a collection's dataflow is hydrated. For people: nothing relies on it."""

    id: str
    operator: str
    hydrated: bool


Response: TypeAlias = Frontiers | PeekResponse | SubscribeBatch | Dropped | CopyToResponse | Status
