"""Observations: facts such as uppers, batches and answers that the driver states to the instance.

`Instance.tell` takes them, most from `spark_timely.compute.drive.worker`. What clients say to the instance are
commands, what it says to them responses.

An observation is a fact, not a request: it may come late, twice or out of order. `run` is the number of the dataflow
that it is about, as the instance gave it; a fact about another run than the one that is there is no longer of interest.

Invariants
----------
1. A collection has one source of its frontier: `Upper` of an index, a log and a relation of the introspection,
   `SubscribeProgress` of a subscribe. A copy-to has none.
2. The batches of a subscribe are stated once each, in order, and none is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from spark_timely.time.antichain import Antichain

__all__ = [
    "INTROSPECTION_RUN",
    "AnswerLatency",
    "ArrangementSizes",
    "CopyToDone",
    "ErrorCount",
    "ImportUpper",
    "Observation",
    "OperatorHydrated",
    "Operators",
    "PeekAnswer",
    "SubscribeProgress",
    "Upper",
]

INTROSPECTION_RUN: Final = 0
"""The run of the collections that show the instance itself: no dataflow has this number."""


@dataclass(frozen=True, slots=True)
class Upper:
    """An index, a log or a relation of the introspection is complete up to a frontier, exclusive."""

    id: str
    run: int
    frontier: Antichain


@dataclass(frozen=True, slots=True)
class ImportUpper:
    """A dataflow sees an import complete up to a frontier, exclusive."""

    run: int
    name: str
    frontier: Antichain


@dataclass(frozen=True, slots=True)
class SubscribeProgress:
    """A subscribe has all updates from a lower to an upper frontier.

    Attributes
    ----------
    id : str
    run : int
    lower, upper : Antichain
    updates : object
        Handed through.
    n_bytes : int
        Size of the updates, for the limit of results.
    error : str or None
        In place of the updates.
    cause : Exception or None
        The error itself, handed through.
    """

    id: str
    run: int
    lower: Antichain
    upper: Antichain
    updates: object = None
    n_bytes: int = 0
    error: str | None = None
    cause: Exception | None = None


@dataclass(frozen=True, slots=True)
class CopyToDone:
    """A copy-to has written `rows` rows, or failed with an error, which is handed through as `cause` too."""

    id: str
    run: int
    rows: int | None = None
    error: str | None = None
    cause: Exception | None = None


@dataclass(frozen=True, slots=True)
class PeekAnswer:
    """A peek has an answer: rows, handed through, with their size in bytes; or an error, with what was raised."""

    id: str
    rows: object = None
    n_bytes: int = 0
    error: str | None = None
    cause: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class OperatorHydrated:
    """An operator of a collection's dataflow is hydrated, or not any more."""

    id: str
    run: int
    operator: str
    hydrated: bool = True


@dataclass(frozen=True, slots=True)
class Operators:
    """A dataflow consists of these operators: (operator, kind, operators that it reads, comma between them)."""

    run: int
    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ArrangementSizes:
    """A dataflow holds this much: (operator, records, batches, bytes)."""

    run: int
    rows: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """A collection has this many errors; the newest one reads so. Zero: none any more."""

    id: str
    run: int
    count: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class AnswerLatency:
    """A peek, or a batch of a subscribe, of this collection or path took this many seconds."""

    id: str
    seconds: float


Observation: TypeAlias = (
    Upper
    | ImportUpper
    | SubscribeProgress
    | CopyToDone
    | PeekAnswer
    | OperatorHydrated
    | Operators
    | ArrangementSizes
    | ErrorCount
    | AnswerLatency
)
