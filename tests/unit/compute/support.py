"""What the tests of the instance share: short ways to write dataflows and to begin a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spark_timely.compute.command import (
    AllowCompaction,
    Command,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    Dataflow,
    Export,
    Import,
    InitializationComplete,
)
from spark_timely.compute.instance import Instance
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

DOMAIN = TimeDomain(("long",), (0,))
EMPTY = Antichain.empty()
SHOWS = CreateInstance({"frontiers": "s_frontiers", "peeks": "s_peeks"}, domain=DOMAIN)


def at(*times: Any) -> Antichain:
    return Antichain.of(*times)


def flow(*exports: str, as_of: Any = 3, reads: Sequence[str] = (), plan: str = "{}", **more: Any) -> Dataflow:
    """A dataflow; exports as ``a``, an index, or ``a:log``."""
    parts = [(each.partition(":")[0], each.partition(":")[2] or "index") for each in exports]
    return Dataflow(
        f"flow of {parts[0][0]}",
        (Import("in", path="/logs/in"), *(Import(id_, export=id_) for id_ in reads)),
        plan,
        tuple(Export(id_, kind) for id_, kind in parts),  # type: ignore[arg-type]
        as_of if isinstance(as_of, Antichain) else at(as_of),
        domain=more.pop("domain", DOMAIN),
        **more,
    )


def create(*exports: str, **more: Any) -> CreateDataflow:
    return CreateDataflow(flow(*exports, **more))


def drop(id_: str) -> AllowCompaction:
    return AllowCompaction(id_, EMPTY)


def session(one: Instance, *commands: Command, epoch: int | None = None) -> Instance:
    """Begin a session, and end its initialization."""
    one.handle(CreateTimely(one.epoch + 1 if epoch is None else epoch))
    one.handle(SHOWS)
    return say(one, *commands, InitializationComplete())


def say(one: Instance, *commands: Command) -> Instance:
    for command in commands:
        one.handle(command)
    return one


def instance(*commands: Command) -> Instance:
    """An instance that computes, and has said how far its introspection is."""
    one = session(Instance())
    return say(one, *commands)


def started(one: Instance) -> set[str]:
    return {id_ for run in one.running() for id_ in run.live}


def run_of(one: Instance, id_: str) -> int:
    return one.collection(id_).run


def rows(one: Instance, relation: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in one.introspection.table(relation).to_pylist()]


def changes(one: Instance, relation: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in one.introspection.take_changes(relation).to_pylist()]


def kinds(responses: Iterable[object]) -> list[str]:
    return [type(each).__name__ for each in responses]
