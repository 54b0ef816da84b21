"""A session: what its commands have said so far, and which command may come next.

A session begins when a client connects, and ends when the next one does. The instance (`spark_timely.compute.instance`)
asks it whether a command may come (`check`), and lets it take the command in (`add`). It knows the dataflows, peeks and
values that the client has asked for, not what has become of them: that is the instance's.

Invariants
----------
1. What is refused changes nothing. What is not refused can be handled.
2. The reduced history of a session is accepted by another one, from the beginning, and leads to the same.
3. An export id is in use until all exports of its dataflow are dropped. Nothing is dropped that another dataflow
   imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from spark_timely.compute.command import (
    AllowCompaction,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    Dataflow,
    Kind,
    Peek,
    UpdateConfiguration,
)
from spark_timely.compute.history import SCHEDULING, History
from spark_timely.compute.introspection import RELATIONS
from spark_timely.errors import (
    InvalidOptionError,
    InvalidShapeError,
    InvalidUsageError,
    MissingError,
    SinceViolationError,
    TimelyError,
    shown,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = ["DEFAULTS", "HYDRATION_LIMIT", "MAX_RESULT_BYTES", "CollectionKind", "Session"]

HYDRATION_LIMIT: Final = "hydration_limit"
"""How many collections may hydrate at once."""

MAX_RESULT_BYTES: Final = "max_result_bytes"
"""How large an answer may be; null: without a limit."""

DEFAULTS: Final[Mapping[str, object]] = MappingProxyType({HYDRATION_LIMIT: 4, SCHEDULING: True, MAX_RESULT_BYTES: None})
"""Values of the configuration that mean something to the instance itself, where nothing is said of them."""

CollectionKind: TypeAlias = "Kind | Literal['introspection']"


@dataclass
class Known:
    """A dataflow that exists, and those of its exports that are not dropped."""

    dataflow: Dataflow
    live: set[str]


@dataclass
class Session:
    """The commands of one session so far.

    Examples
    --------
    >>> session = Session()
    >>> for command in (CreateTimely(1), CreateInstance()):
    ...     session.check(command)
    ...     session.add(command)
    >>> session.configuration["hydration_limit"], len(session.history)
    (4, 2)
    """

    history: History = field(default_factory=History)
    epoch: int = -1
    owner: str = ""
    created: CreateInstance | None = None
    configuration: Mapping[str, object] = field(default_factory=lambda: DEFAULTS)
    flows: dict[str, Known] = field(default_factory=dict)
    allowed: dict[str, Antichain] = field(default_factory=dict)
    importers: dict[str, set[str]] = field(default_factory=dict)
    peeks: dict[str, Peek] = field(default_factory=dict)
    canceled: dict[str, Peek] = field(default_factory=dict)

    # Looking -------------------------------------------------------------------------------------

    @property
    def relations(self) -> dict[str, str]:
        """Relations of the introspection by the id of their collection."""
        return {} if self.created is None else {id_: name for name, id_ in self.created.introspection.items()}

    def kind_of(self, id_: str) -> CollectionKind | None:
        """Return what kind of collection an id stands for; None if there is none, or it is dropped."""
        if id_ in self.relations:
            return "introspection"
        known = self.flows.get(id_)
        if known is None or id_ not in known.live:
            return None
        return next(each.kind for each in known.dataflow.exports if each.id == id_)

    def domain_of(self, id_: str) -> TimeDomain:
        """Return what times a collection has that exists."""
        if id_ in self.flows:
            return self.flows[id_].dataflow.domain
        return TimeDomain() if self.created is None else self.created.domain

    # Refusing ------------------------------------------------------------------------------------

    def check(self, command: Command) -> None:
        """Raise what a command is refused with; return if it is not.

        Raises
        ------
        InvalidUsageError
            If it is not its time, or it contradicts what was said before.
        MissingError
            If it names a collection that does not exist.
        SinceViolationError
            If a dataflow would read an index before what that was allowed to compact to.
        """
        if isinstance(command, CreateTimely):
            return
        if self.epoch < 0:
            msg = f"could not handle {_named(command)}: found no session"
            raise InvalidUsageError(msg, hint="begin one with CreateTimely")
        if isinstance(command, CreateInstance):
            self._check_instance(command)
            return
        if self.created is None:
            msg = f"could not handle {_named(command)}: found no instance"
            raise InvalidUsageError(msg, hint="create it with CreateInstance")
        match command:
            case UpdateConfiguration(values):
                _check_configuration(values)
            case CreateDataflow(dataflow):
                self._check_dataflow(dataflow)
            case AllowCompaction(id_, frontier):
                self._check_compaction(id_, frontier)
            case Peek():
                self._check_peek(command)

    def _check_instance(self, command: CreateInstance) -> None:
        if self.created is not None:
            msg = "could not create the instance: found it created"
            raise InvalidUsageError(msg, hint="send CreateInstance once in a session")
        unknown = sorted(command.introspection.keys() - RELATIONS.keys())
        if unknown:
            msg = f"could not create the instance: found relation={shown(unknown[0])}"
            raise InvalidUsageError(msg, hint=f"relations are {', '.join(RELATIONS)}")
        ids = list(command.introspection.values())
        twice = sorted({id_ for id_ in ids if ids.count(id_) > 1})
        if twice:
            msg = f"could not create the instance: found id {twice[0]!r} for two relations"
            raise InvalidUsageError(msg, hint="give each relation an id of its own")
        _check_configuration(command.configuration)

    def _check_dataflow(self, dataflow: Dataflow) -> None:
        what = f"could not create dataflow {dataflow.name!r}"
        for id_ in dataflow.export_ids:
            if id_ in self.relations:
                msg = f"{what}: found id {id_!r} in use for relation {self.relations[id_]!r} of the introspection"
                raise InvalidUsageError(msg, hint="choose another id")
            if id_ in self.flows:
                known = self.flows[id_]
                msg = f"{what}: found id {id_!r} in use in dataflow {known.dataflow.name!r}"
                others = sorted(known.live)
                raise InvalidUsageError(msg, hint=f"choose another id, or drop {', '.join(others)} first")
        for each in dataflow.imports:
            if each.export is not None:
                self._check_own_import(what, dataflow, each.name, each.export)

    def _check_own_import(self, what: str, dataflow: Dataflow, name: str, id_: str) -> None:
        own = {export.id: export.kind for export in dataflow.exports}
        kind = own.get(id_) or self.kind_of(id_)
        if kind is None:
            msg = f"{what}: found no collection {id_!r}, which import {name!r} names"
            raise MissingError(msg, hint="create it first")
        if kind in ("subscribe", "copy-to") or (id_ in own and kind != "log"):
            msg = f"{what}: found import {name!r} of {id_!r}, a {kind}{' of its own' if id_ in own else ''}"
            raise InvalidUsageError(msg, hint="import an index or a log; of its own exports, a log")
        if id_ in own or kind == "introspection":
            return
        source = self.flows[id_].dataflow
        if dataflow.lasts and not source.lasts:
            msg = f"{what}: found import {name!r} of {id_!r}, which is gone after a restart"
            raise InvalidUsageError(msg, hint=f"make it interactive too, or {id_!r} one that lasts")
        if kind != "index" or source.domain.arity != dataflow.domain.arity:
            return
        if not self.allowed[id_].less_equal_frontier(dataflow.as_of):
            msg = f"{what}: found as_of={dataflow.as_of!r}, index {id_!r} can be read from {self.allowed[id_]!r} on"
            raise SinceViolationError(msg, hint="choose a later as_of", as_of=dataflow.as_of, since=self.allowed[id_])

    def _check_compaction(self, id_: str, frontier: Antichain) -> None:
        what = "drop" if frontier.is_empty else "allow compaction of"
        kind = self.kind_of(id_)
        if kind is None:
            msg = f"could not {what} {shown(id_)}: found no collection of this id"
            raise MissingError(msg, hint="look at the relation of exports for those that exist")
        arity = self.domain_of(id_).arity
        if frontier.arity != arity:
            msg = f"could not {what} {id_!r}: found {frontier!r} of arity={frontier.arity}"
            raise InvalidShapeError(msg, hint=f"give a frontier of {arity} coordinates, as its times")
        if not frontier.is_empty:
            return
        if kind == "introspection":
            msg = f"could not drop {id_!r}: found a collection that shows the instance itself"
            raise InvalidUsageError(msg, hint="create the instance without it")
        importers = sorted(self.importers.get(id_, ()))
        if importers:
            msg = f"could not drop {id_!r}: found it imported for {', '.join(map(repr, importers[:8]))}"
            raise InvalidUsageError(msg, hint="drop these first", context={"importers": importers})

    def _check_peek(self, peek: Peek) -> None:
        if peek.id in self.peeks or peek.id in self.canceled:
            msg = f"could not peek as {peek.id!r}: found a peek of this id without its response"
            raise InvalidUsageError(msg, hint="give each peek an id of its own")
        if peek.collection is None:
            return
        kind = self.kind_of(peek.collection)
        if kind is None:
            msg = f"could not peek at {shown(peek.collection)}: found no collection of this id"
            raise MissingError(msg, hint="look at the relation of exports for those that exist")
        if kind in ("subscribe", "copy-to"):
            msg = f"could not peek at {peek.collection!r}: found a {kind}"
            raise InvalidUsageError(msg, hint="peek at an index or a log")
        arity = self.domain_of(peek.collection).arity
        if len(peek.time) != arity:
            msg = f"could not peek at {peek.collection!r}: found time={peek.time!r}"
            raise InvalidShapeError(msg, hint=f"give a time of {arity} coordinates")

    # Adding --------------------------------------------------------------------------------------

    def add(self, command: Command) -> None:
        """Take a command in that was not refused: into the history before all else."""
        self.history.append(command)
        self.fold(command)

    def fold(self, command: Command) -> None:
        """Take in what a command says, without the history."""
        match command:
            case CreateTimely(epoch, owner):
                self.epoch, self.owner = epoch, owner
            case CreateInstance():
                self.created = command
                self._configure(command.configuration)
                for id_ in self.relations:
                    self.allowed[id_] = command.domain.minimum_frontier
            case UpdateConfiguration(values):
                self._configure(values)
            case CreateDataflow(dataflow):
                known = Known(dataflow, set(dataflow.export_ids))
                for id_ in dataflow.export_ids:
                    self.flows[id_] = known
                    self.allowed[id_] = dataflow.as_of
                for id_ in dataflow.own_imports:
                    self.importers.setdefault(id_, set()).update(dataflow.export_ids)
            case AllowCompaction(id_, frontier):
                self._compact(id_, frontier)
            case Peek():
                self.peeks[command.id] = command
            case CancelPeek(id_) if id_ in self.peeks:
                self.canceled[id_] = self.peeks.pop(id_)

    def _configure(self, values: Mapping[str, object]) -> None:
        # Another mapping each time: a step that looks at one sees the same until it ends.
        self.configuration = MappingProxyType({**self.configuration, **values})

    def _compact(self, id_: str, frontier: Antichain) -> None:
        if not frontier.is_empty:
            self.allowed[id_] = self.allowed[id_].join(frontier)
            return
        known = self.flows[id_]
        known.live.discard(id_)
        del self.allowed[id_]
        for source in known.dataflow.own_imports:
            self.importers[source].discard(id_)
        if not known.live:
            for other in known.dataflow.export_ids:
                del self.flows[other]

    def retire_peek(self, id_: str) -> None:
        """Note that a peek has its response."""
        canceled = self.canceled.pop(id_, None)
        if self.peeks.pop(id_, None) is not None and canceled is None:
            self.history.retire_peek(id_)


def _named(command: Command) -> str:
    return type(command).__name__


def _check_configuration(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if name == SCHEDULING and not isinstance(value, bool):
            raise _wrong_value(name, value, "true or false")
        if name == HYDRATION_LIMIT and not _is_size(value):
            raise _wrong_value(name, value, "a whole number, 0 or more")
        if name == MAX_RESULT_BYTES and value is not None and not _is_size(value):
            raise _wrong_value(name, value, "a number of bytes, or null for no limit")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong_value(name: str, value: object, wanted: str) -> TimelyError:
    msg = f"could not configure the instance: found {name}={shown(value)}"
    return InvalidOptionError(msg, hint=f"give {wanted}")
