"""Commands to a compute instance: create, schedule, compact or drop dataflows, peek, configure.

Overview
--------
A client says what shall run as a sequence of commands. They describe a state to reach, not steps to take: an instance
that gets the same commands again, after a restart or from another client, reaches the same state. Commands are plain
values. Each has one text, canonical JSON, by which it is kept in the command log (`spark_timely.compute.command_log`).

`spark_timely.compute.drive.handle` makes commands of its methods, and `spark_timely.compute.instance` acts upon them.
What the driver reports to the instance is an observation (`spark_timely.compute.observation`), and no command.

Transport
---------
Commands of one session arrive in the order in which they were sent. A session can end at any command; the next client
begins another one with `CreateTimely` and a greater epoch. A command that is refused is answered by an error, and
changes nothing.

Stages
------
1. *Creation*: `CreateTimely`, then `CreateInstance`.
2. *Initialization*: any commands. They are collected, and nothing is answered yet.
3. *Computing*: from `InitializationComplete` on. What the commands of stage 2 say is compared with what runs already:
   see `spark_timely.compute.reconciliation`.
4. *Writing*: from `AllowWrites` on the instance writes to logs. There is no way back, not by another session either.

Invariants
----------
1. Equal commands have equal texts, and `parse_command` of a text gives an equal command.
2. JSON that is handed through (plans, details) is kept in its canonical text, so that it is compared by what it says.
3. A dataflow lasts if it is neither interactive nor made of what only this process has. Commands about it last as it
   does; peeks never last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_type_hints

from spark_timely.errors import InvalidShapeError, InvalidUsageError, LogFormatError, TimelyError, shown
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = [
    "AllowCompaction",
    "AllowWrites",
    "CancelPeek",
    "Command",
    "CreateDataflow",
    "CreateInstance",
    "CreateTimely",
    "Dataflow",
    "Export",
    "Import",
    "InitializationComplete",
    "Kind",
    "Peek",
    "Schedule",
    "UpdateConfiguration",
    "keys_once",
    "parse_command",
    "text_of",
]

COMMAND_VERSION: Final = 1
"""Version of the commands' texts."""

Kind: TypeAlias = Literal["index", "log", "subscribe", "copy-to"]

KINDS: Final[tuple[Kind, ...]] = ("index", "log", "subscribe", "copy-to")
"""What a dataflow can export."""

_Plain = TypeVar("_Plain")

# Of a field with JSON that is handed through, as text.
_JSON: Final = {"json": True}

_WRITTEN: Final[dict[type, str]] = {
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


# Values ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Import:
    """Say where a dataflow reads from: a log, or an export of the same instance.

    Attributes
    ----------
    name : str
        How the plan calls it.
    path : str or None
        Path of a log.
    log_id : str or None
        Id of the log at this path; None where it is not known yet.
    export : str or None
        Id of an export of the instance, in place of a path.

    Examples
    --------
    >>> Import("orders", path="/logs/orders", log_id="5f3a").target
    '/logs/orders'
    >>> Import("totals", export="totals_by_key").target
    'totals_by_key'
    """

    name: str
    path: str | None = None
    log_id: str | None = None
    export: str | None = None

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_text("the name of an import", self.name)
        if (self.path is None) == (self.export is None):
            msg = f"could not describe import {shown(self.name)}: found path={self.path!r}, export={self.export!r}"
            raise InvalidUsageError(msg, hint="give the path of a log, or the id of an export of the instance")
        _check_text(f"what import {self.name!r} reads", self.target)
        if self.log_id is not None:
            _check_text(f"the log id of import {self.name!r}", self.log_id)
            if self.path is None:
                msg = f"could not describe import {self.name!r}: found log_id={self.log_id!r} without a path"
                raise InvalidUsageError(msg, hint="give an id with the path of a log only")

    @property
    def target(self) -> str:
        """What is read: the path of the log, or the id of the export."""
        return cast("str", self.export if self.path is None else self.path)


@dataclass(frozen=True, slots=True)
class Export:
    """Say what a dataflow gives: one collection.

    Attributes
    ----------
    id : str
    kind : "index", "log", "subscribe" or "copy-to"
    details : str
        JSON for the driver that maintains it, such as the path of a log. Kept as canonical text.

    Examples
    --------
    >>> Export("totals", "log", '{ "path": "/logs/totals" }').details
    '{"path":"/logs/totals"}'
    """

    id: str
    kind: Kind
    details: str = field(default="{}", metadata=_JSON)

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_text("the id of an export", self.id)
        if self.kind not in KINDS:
            msg = f"could not describe export {self.id!r}: found kind={shown(self.kind)}"
            raise InvalidUsageError(msg, hint=f"choose among {', '.join(KINDS)}")
        object.__setattr__(self, "details", _canonical(f"the details of export {self.id!r}", self.details))


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Describe a dataflow: what it reads, computes and exports, and over which times.

    Attributes
    ----------
    name : str
        For people; no part of what the dataflow computes.
    imports : tuple of Import
    plan : str
        What it computes, as JSON. Not looked into; kept as canonical text.
    exports : tuple of Export
        At least one.
    as_of : Antichain
        From which times on outputs are right. What was before is seen at these times.
    until : Antichain
        Times from which on outputs do not matter, exclusive. Empty without such a bound.
    domain : TimeDomain
        What times it has.
    interactive : bool
        Whether somebody waits for it now: it starts at once, and ends with the process.
    restartable : bool
        Whether the plan says all of it. False for one made of Python functions of this process.

    Examples
    --------
    >>> flow = Dataflow(
    ...     "totals",
    ...     imports=(Import("orders", path="/logs/orders"),),
    ...     plan='{"aggregate": {"by": ["k"]}}',
    ...     exports=(Export("totals", "index"),),
    ...     as_of=Antichain.of(7),
    ... )
    >>> flow.export_ids, flow.lasts, flow.at(Antichain.of(9)).as_of
    (('totals',), True, Antichain.of(9))
    """

    name: str
    imports: tuple[Import, ...]
    plan: str = field(metadata=_JSON)
    exports: tuple[Export, ...]
    as_of: Antichain
    until: Antichain = field(default_factory=Antichain.empty)
    domain: TimeDomain = field(default_factory=TimeDomain)
    interactive: bool = False
    restartable: bool = True

    def __post_init__(self) -> None:
        """Check and normalise what was given."""
        _check_text("the name of a dataflow", self.name)
        what = f"dataflow {self.name!r}"
        for flag in ("interactive", "restartable"):
            if not isinstance(getattr(self, flag), bool):
                msg = f"could not describe {what}: found {flag}={shown(getattr(self, flag))}"
                raise InvalidUsageError(msg, hint="give true or false")
        if not isinstance(self.domain, TimeDomain):
            msg = f"could not describe {what}: found domain={shown(self.domain)}"
            raise InvalidUsageError(msg, hint="give the TimeDomain that its times have")
        _check_items(what, "imports", self.imports, Import)
        _check_items(what, "exports", self.exports, Export)
        object.__setattr__(self, "imports", tuple(self.imports))
        object.__setattr__(self, "exports", tuple(self.exports))
        if not self.exports:
            msg = f"could not describe {what}: found no exports"
            raise InvalidUsageError(msg, hint="give it at least one export")
        _check_once(what, "import", [each.name for each in self.imports])
        _check_once(what, "export", [each.id for each in self.exports])
        object.__setattr__(self, "plan", _canonical(f"the plan of {what}", self.plan))
        if self.until == Antichain.empty() and self.domain.arity != 1:
            object.__setattr__(self, "until", Antichain.empty(self.domain.arity))
        for bound in ("as_of", "until"):
            found = getattr(self, bound)
            if not isinstance(found, Antichain) or found.arity != self.domain.arity:
                msg = f"could not describe {what}: found {bound}={shown(found)}"
                raise InvalidShapeError(msg, hint=f"give an Antichain of {self.domain.arity} coordinates, as its times")
        if self.as_of.is_empty:
            msg = f"could not describe {what}: found an empty as_of"
            raise InvalidUsageError(msg, hint="give the times from which on it shall be right")
        if not self.domain.minimum_frontier.less_equal_frontier(self.as_of):
            msg = f"could not describe {what}: found as_of={self.as_of!r} before the minimum {self.domain.minimum}"
            raise InvalidUsageError(msg, hint="give times of its domain")

    @property
    def export_ids(self) -> tuple[str, ...]:
        """Ids of its exports, in their order."""
        return tuple(each.id for each in self.exports)

    @property
    def own_imports(self) -> tuple[str, ...]:
        """Ids of exports of the instance that it reads, its own left out."""
        mine = set(self.export_ids)
        return tuple(each.export for each in self.imports if each.export is not None and each.export not in mine)

    @property
    def lasts(self) -> bool:
        """Whether it is there again after a restart of the process (invariant 3)."""
        return self.restartable and not self.interactive

    def at(self, as_of: Antichain) -> Dataflow:
        """Return the same dataflow with another as_of."""
        return self if as_of == self.as_of else replace(self, as_of=as_of)


# Commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTimely:
    """Begin a session. The first command of each; its epoch is greater than those before.

    Attributes
    ----------
    epoch : int
        Number of the session: 0 or more.
    owner : str
        Id of the process or client that began it.
    """

    epoch: int
    owner: str = "owner"

    def __post_init__(self) -> None:
        """Check what was given."""
        if isinstance(self.epoch, bool) or not isinstance(self.epoch, int) or self.epoch < 0:
            msg = f"could not begin a session: found epoch={shown(self.epoch)}"
            raise InvalidUsageError(msg, hint="give a whole number, 0 or more")
        _check_text("the owner of a session", self.owner)


class _EqualByText:
    """Values that are equal if they say the same: to Python, 1 and true are equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether the texts are equal."""
        return text_of(self) == text_of(other) if type(other) is type(self) else NotImplemented  # type: ignore[arg-type]

    def __hash__(self) -> int:
        """Return a hash that agrees with `==`."""
        return hash(text_of(self))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class CreateInstance(_EqualByText):
    """Create the instance. The second command of a session; there is no second one.

    Attributes
    ----------
    introspection : dict of str to str
        Ids of the collections that show the instance, by relation. Those not named are not shown as collections.
    configuration : dict
        Values that hold from the beginning, as in `UpdateConfiguration`.
    domain : TimeDomain
        What times the introspection's collections have.
    """

    introspection: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, object] = field(default_factory=dict)
    domain: TimeDomain = field(default_factory=TimeDomain)

    def __post_init__(self) -> None:
        """Check what was given, and keep a copy."""
        for relation, id_ in _checked_mapping("introspection", self.introspection).items():
            _check_text("the name of a relation", relation)
            _check_text(f"the id of relation {relation!r}", id_)
        if not isinstance(self.domain, TimeDomain):
            msg = f"could not create an instance: found domain={shown(self.domain)}"
            raise InvalidUsageError(msg, hint="give the TimeDomain of its introspection")
        object.__setattr__(self, "introspection", MappingProxyType(dict(self.introspection)))
        object.__setattr__(self, "configuration", _checked_configuration(self.configuration))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the values: views of mappings cannot be pickled."""
        return CreateInstance, (dict(self.introspection), dict(self.configuration), self.domain)


@dataclass(frozen=True, slots=True)
class InitializationComplete:
    """End the initialization: what was not created again is dropped, and responses may come."""


@dataclass(frozen=True, slots=True)
class AllowWrites:
    """Let the instance write to logs. For ever: later sessions cannot take it back."""


@dataclass(frozen=True, slots=True, eq=False)
class UpdateConfiguration(_EqualByText):
    """Change values of the configuration. Those not named stay as they are.

    Attributes
    ----------
    values : dict
        Plain JSON values by name. `spark_timely.compute.instance` says which names mean something here; all others
        are for its driver.
    """

    values: Mapping[str, object]

    def __post_init__(self) -> None:
        """Check what was given, and keep a copy."""
        object.__setattr__(self, "values", _checked_configuration(self.values))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the values: views of mappings cannot be pickled."""
        return UpdateConfiguration, (dict(self.values),)


@dataclass(frozen=True, slots=True)
class CreateDataflow:
    """Create a dataflow. It waits until all its exports are scheduled, unless it is interactive.

    What it imports from the instance exists already, and can be read at its as_of. Ids of its exports are in no use:
    an id is in use until all exports of its dataflow are dropped.
    """

    dataflow: Dataflow

    def __post_init__(self) -> None:
        """Check what was given."""
        if not isinstance(self.dataflow, Dataflow):
            msg = f"could not create a dataflow: found {shown(self.dataflow)}"
            raise InvalidUsageError(msg, hint="give a Dataflow")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Let a collection's dataflow start, once the others of its exports may too. Unknown ids are ignored."""

    id: str

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_text("the id of a collection", self.id)


@dataclass(frozen=True, slots=True)
class AllowCompaction:
    """Let a collection forget what tells times before a frontier apart. With the empty frontier: drop it.

    The frontier may be ahead of how far the collection is: the driver of the instance takes it no further than that
    (`spark_timely.compute.drive.retention.may_forget`). Of subscribes and copy-tos it forgets nothing.
    """

    id: str
    frontier: Antichain

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_text("the id of a collection", self.id)
        if not isinstance(self.frontier, Antichain):
            msg = f"could not allow compaction of {self.id!r}: found {shown(self.frontier)}"
            raise InvalidUsageError(msg, hint="give an Antichain")


@dataclass(frozen=True, slots=True)
class Peek:
    """Ask for the contents of a collection at a time. There is exactly one response.

    Attributes
    ----------
    id : str
        Names the answer; of no other peek that waits.
    time : tuple of int
        One number per coordinate, in units of the collection's times.
    collection : str or None
        Id of an index, of a log that the instance writes, or of a relation of the introspection.
    path : str or None
        Path of any log, in place of a collection.
    plan : str
        What of the contents, as JSON. Not looked into; kept as canonical text.
    traceparent : str or None
        Handed through to the response.
    """

    id: str
    time: tuple[int, ...]
    collection: str | None = None
    path: str | None = None
    plan: str = field(default="{}", metadata=_JSON)
    traceparent: str | None = None

    def __post_init__(self) -> None:
        """Check and normalise what was given."""
        _check_text("the id of a peek", self.id)
        if (self.collection is None) == (self.path is None):
            msg = f"could not peek as {self.id!r}: found collection={self.collection!r}, path={self.path!r}"
            raise InvalidUsageError(msg, hint="give the id of a collection, or the path of a log")
        _check_text(f"what peek {self.id!r} reads", self.target)
        if not isinstance(self.time, tuple | list) or len(self.time) == 0 or not all(map(_is_number, self.time)):
            msg = f"could not peek as {self.id!r}: found time={shown(self.time)}"
            raise InvalidShapeError(msg, hint="give a whole number for each coordinate of its times")
        if self.traceparent is not None:
            _check_text(f"the traceparent of peek {self.id!r}", self.traceparent)
        object.__setattr__(self, "time", tuple(self.time))
        object.__setattr__(self, "plan", _canonical(f"the plan of peek {self.id!r}", self.plan))

    @property
    def target(self) -> str:
        """What is read: the id of the collection, or the path of the log."""
        return cast("str", self.collection if self.path is None else self.path)


@dataclass(frozen=True, slots=True)
class CancelPeek:
    """Take a peek back. If it has no answer yet, that it was canceled is its answer; else ignored."""

    id: str

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_text("the id of a peek", self.id)


Command: TypeAlias = (
    CreateTimely
    | CreateInstance
    | InitializationComplete
    | AllowWrites
    | UpdateConfiguration
    | CreateDataflow
    | Schedule
    | AllowCompaction
    | Peek
    | CancelPeek
)


# Texts -------------------------------------------------------------------------------------------


def text_of(command: Command, /) -> str:
    """Return a command as canonical JSON (invariant 1).

    Examples
    --------
    >>> text_of(Schedule("totals"))
    '{"command":"schedule","id":"totals","v":1}'
    >>> text_of(AllowCompaction("totals", Antichain.of(9)))
    '{"arity":1,"command":"allow_compaction","frontier":[9],"id":"totals","v":1}'
    """
    return _dumps({"v": COMMAND_VERSION, "command": NAMES[type(command)], **_json_of(command)})


def parse_command(text: str, /) -> Command:
    """Read the text of a command: nothing missing, nothing unknown.

    Raises
    ------
    LogFormatError
        If the text is of a later version.
    InvalidUsageError
        If it is no command.

    Examples
    --------
    >>> parse_command('{"command":"schedule","id":"totals","v":1}')
    Schedule(id='totals')
    """
    parts = _Parts(_loads("a command", text), "a command")
    version = parts.take("v", int)
    if version != COMMAND_VERSION:
        msg = f"could not read a command: found version={version}, this library reads {COMMAND_VERSION}"
        raise LogFormatError(msg, hint="use the version of spark-timely that wrote it", context={"version": version})
    name = parts.take("command", str)
    if name not in _COMMANDS:
        msg = f"could not read a command: found command={shown(name)}"
        raise LogFormatError(msg, hint=f"commands are {', '.join(sorted(_COMMANDS))}")
    parts.what = f"command {name!r}"
    try:
        command: Command = _read(_COMMANDS[name], parts)
    except TimelyError as error:
        error.locate(f"in command {name!r}")
        raise
    parts.end()
    return command


def _json_of(value: object) -> Any:  # noqa: ANN401 - what JSON has
    """Return a command, or a part of one, as JSON: by its fields, without those that are not given."""
    if isinstance(value, Antichain | TimeDomain):
        return value.to_json()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_json_of(each) for each in value]
    if not is_dataclass(value):
        return value
    given = {each: getattr(value, each.name) for each in fields(value)}
    found = {
        each.name: json.loads(part) if each.metadata.get("json") else _json_of(part)
        for each, part in given.items()
        if part is not None
    }
    return {**found, "arity": value.frontier.arity} if isinstance(value, AllowCompaction) else found


class _Parts:
    """The parts of a JSON object, each taken once.

    Attributes
    ----------
    left : dict
        Those not taken yet.
    what : str
        What the object is, for errors.
    arity : int
        How many coordinates the times in it have, once that is known.
    """

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            msg = f"could not read {what}: found {shown(value)}"
            raise InvalidUsageError(msg, hint="give a JSON object")
        self.left: dict[str, object] = dict(value)
        self.what, self.arity = what, 0

    def take(self, name: str, kind: type[_Plain]) -> _Plain:
        """Take a part that has to be there, of a kind."""
        if name not in self.left:
            msg = f"could not read {self.what}: found no {name!r}"
            raise InvalidUsageError(msg, hint=f"give {name!r}")
        found = self.left.pop(name)
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            msg = f"could not read {self.what}: found {name}={shown(found)}"
            raise InvalidUsageError(msg, hint=f"give {name!r} as {_WRITTEN[kind]}")
        return found

    def end(self) -> None:
        """Refuse what was not taken."""
        if self.left:
            msg = f"could not read {self.what}: found unknown {shown(min(self.left))}"
            raise InvalidUsageError(msg, hint="leave it out, or use the version of spark-timely that wrote it")


_Reader: TypeAlias = Callable[[_Parts, str], Any]


def _plain(kind: type) -> _Reader:
    return lambda parts, name: parts.take(name, kind)


def _each(kind: type, what: str) -> _Reader:
    return lambda parts, name: tuple(_read_whole(kind, each, what) for each in parts.take(name, list))


def _read_domain(parts: _Parts, name: str) -> TimeDomain:
    inner = _Parts(parts.take(name, dict), "a time domain")
    times, minimum = inner.take("times", list), inner.take("minimum", list)
    inner.end()
    domain = TimeDomain.from_json({"times": times, "minimum": minimum})
    parts.arity = domain.arity
    return domain


_READERS: Final[Mapping[object, _Reader]] = {
    int: _plain(int),
    str: _plain(str),
    bool: _plain(bool),
    Kind: _plain(str),
    str | None: lambda parts, name: parts.take(name, str) if name in parts.left else None,
    Mapping[str, str]: _plain(dict),
    Mapping[str, object]: _plain(dict),
    TimeDomain: _read_domain,
    Antichain: lambda parts, name: Antichain.from_json(parts.take(name, list), parts.arity),
    Dataflow: lambda parts, name: _read_whole(Dataflow, parts.take(name, dict), "a dataflow"),
    tuple[int, ...]: lambda parts, name: tuple(parts.take(name, list)),
    tuple[Import, ...]: _each(Import, "an import"),
    tuple[Export, ...]: _each(Export, "an export"),
}
"""How a field is read from an object by its name, by the type of the field."""

_types_of = cache(get_type_hints)


def _read(kind: type, parts: _Parts) -> Any:  # noqa: ANN401 - of the kind
    """Return a command, or a part of one, by the types of its fields."""
    found: dict[str, Any] = {}
    if kind is AllowCompaction:
        parts.arity = parts.take("arity", int)
    types = _types_of(kind)
    # The domain first: bounds are read by how many coordinates its times have.
    for each in sorted(fields(kind), key=lambda each: types[each.name] is not TimeDomain):
        is_json = each.metadata.get("json")
        found[each.name] = (
            _dumps(parts.take(each.name, object)) if is_json else _READERS[types[each.name]](parts, each.name)
        )
    return kind(**found)


def _read_whole(kind: type, value: object, what: str) -> Any:  # noqa: ANN401 - of the kind
    parts = _Parts(value, what)
    found = _read(kind, parts)
    parts.end()
    return found


NAMES: Final[Mapping[type, str]] = {
    CreateTimely: "create_timely",
    CreateInstance: "create_instance",
    InitializationComplete: "initialization_complete",
    AllowWrites: "allow_writes",
    UpdateConfiguration: "update_configuration",
    CreateDataflow: "create_dataflow",
    Schedule: "schedule",
    AllowCompaction: "allow_compaction",
    Peek: "peek",
    CancelPeek: "cancel_peek",
}
"""What each command is called in its text."""

_COMMANDS: Final[Mapping[str, type]] = {name: kind for kind, name in NAMES.items()}


# Checks ------------------------------------------------------------------------------------------


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable():
        msg = f"could not read {what}: found {shown(value)}"
        raise InvalidUsageError(msg, hint="give a text of printable characters, without spaces at its ends")


def _check_items(what: str, name: str, items: object, kind: type) -> None:
    if not isinstance(items, tuple | list) or not all(isinstance(item, kind) for item in items):
        msg = f"could not describe {what}: found {name}={shown(items)}"
        raise InvalidUsageError(msg, hint=f"give a tuple of {kind.__name__}")


def _check_once(what: str, part: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"could not describe {what}: found {part} {twice[0]!r} twice"
        raise InvalidUsageError(msg, hint=f"give each {part} a name of its own")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 64


def _checked_mapping(what: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        msg = f"could not read {what}: found {shown(value)}"
        raise InvalidUsageError(msg, hint="give a mapping")
    return value


def _checked_configuration(values: object) -> Mapping[str, object]:
    for name in _checked_mapping("a configuration", values):
        _check_text("the name of a configuration value", name)
    # By way of their text: what is kept is a copy, of plain values alone.
    return MappingProxyType(cast("dict[str, object]", json.loads(_dumps(dict(cast("dict[str, object]", values))))))


def _dumps(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"could not write a command: found {shown(value)}, which is no JSON"
        raise InvalidUsageError(msg, hint="give texts, finite numbers, true, false, null, lists and objects") from error


def _loads(what: str, text: object) -> object:
    if not isinstance(text, str):
        msg = f"could not read {what}: found {shown(text)}"
        raise InvalidUsageError(msg, hint="give JSON as a text")
    try:
        return json.loads(text, object_pairs_hook=keys_once, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        msg = f"could not read {what}: found {shown(text)}, which is no JSON ({shown(str(error))})"
        raise InvalidUsageError(msg, hint="give JSON, with each key once and finite numbers") from error


def _canonical(what: str, text: object) -> str:
    return _dumps(_loads(what, text))


def keys_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object, for which `ValueError` is raised where a key is there twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key is there twice"
        raise ValueError(msg)
    return found


def _refuse(text: str) -> float:
    msg = f"{text} is no number of JSON"
    raise ValueError(msg)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        msg = f"{text} is too large"
        raise ValueError(msg)
    return value
