"""The JSON of operators in a plan: which fields of an operator are in it, how they are read, checked and written.

A field of an operator's dataclass is in JSON if its metadata says how, by `in_plan(Text())` or another `JsonField`; a
plan cannot have any other field. `spark_timely.compute.plan` reads and writes the tree of nodes; for each node it calls
this module to read the operator (`read_operator`), check it (`checked_operator`) and write it (`node_of`).

Invariants
----------
1. What is read is what was written. What equals its default is left out.
2. A white list: a part that is not known is refused by its name and place, whether it would do harm or not.
3. What JSON does not keep, the order of an object's keys, says nothing: what is in an object is sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from spark_timely.dataflow.aggregates import Aggregation
from spark_timely.errors import InvalidUsageError, shown

if TYPE_CHECKING:
    from spark_timely.dataflow.views import Operator

__all__ = [
    "Choice",
    "Columns",
    "Flag",
    "JsonField",
    "JsonNode",
    "Number",
    "Ordering",
    "Text",
    "Texts",
    "Values",
    "are_texts",
    "check_name",
    "check_names",
    "check_once",
    "checked_operator",
    "in_plan",
    "node_of",
    "read_operator",
    "unreadable",
    "wrong",
]

T = TypeVar("T")

_KINDS: Final = ("count", "sum", "avg", "min", "max")
_REQUIRED: Final = object()


def in_plan(kind: JsonField[Any]) -> dict[str, JsonField[Any]]:
    """Return the metadata of an operator's field that stands in the JSON of a plan."""
    return {"plan": kind}


def wrong(op: str, found: str, hint: str) -> InvalidUsageError:
    """Return the error of an operator that no plan can have."""
    return InvalidUsageError(f"could not plan {op!r}: found {found}", hint=hint)


def unreadable(place: str, found: str, hint: str) -> InvalidUsageError:
    """Return the error of a text that says no plan."""
    msg = f"could not read a plan: found {found} at {place}"
    return InvalidUsageError(msg, hint=hint, context={"node": place})


def check_name(op: str, name: str, value: object) -> None:
    """Refuse what is no text, or empty."""
    if not isinstance(value, str) or not value:
        raise wrong(op, f"{name}={shown(value)}", "give a text that is not empty")


def check_once(op: str, name: str, names: Sequence[str]) -> None:
    """Refuse names of which one is there twice."""
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise wrong(op, f"{name} with {shown(twice[0])} twice", "name each once")


def check_names(op: str, name: str, values: Sequence[str]) -> None:
    """Refuse names that are no texts, or of which one is there twice."""
    for value in values:
        check_name(op, name, value)
    check_once(op, name, values)


def are_texts(found: object) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(found, list) and all(isinstance(each, str) for each in found)


class JsonNode:
    """The parts of one node in JSON, each to be taken once.

    Parameters
    ----------
    found : dict
    place : str
        Of the node in the text, for errors.
    """

    def __init__(self, found: dict[str, Any], place: str) -> None:
        self._left, self.place = dict(found), place
        self.op = ""

    def has(self, name: str) -> bool:
        """Return whether a part is given."""
        return name in self._left

    def take(self, name: str, kind: type, hint: str) -> Any:  # noqa: ANN401 - of the kind asked for
        """Return a part, which has to be there."""
        if name not in self._left:
            of = f" for op {self.op!r}" if self.op else ""
            raise unreadable(self.place, f"no {name!r}{of}", f"give {hint}")
        value = self._left.pop(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise unreadable(self.place, f"{name}={shown(value)}", f"give {hint}")
        return value

    def take_or(self, name: str, usual: object) -> Any:  # noqa: ANN401 - of any kind
        """Return a part of any kind, or what it usually is."""
        return self._left.pop(name, usual)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        found = self.take(name, list, "a list of texts")
        if not are_texts(found):
            raise unreadable(self.place, f"{name}={shown(found)}", "give a list of texts")
        return tuple(found)

    def close(self) -> None:
        """Refuse what nobody took."""
        if self._left:
            unknown = f"part {shown(min(self._left))} of op {self.op!r}"
            raise unreadable(self.place, unknown, "leave it out: it is not known")


@dataclass(frozen=True, slots=True)
class JsonField(Generic[T]):
    """The form of an operator's field in JSON; each kind of field has a class.

    Attributes
    ----------
    name : str
        In JSON; that of the field unless given.
    default : object
        Its value where JSON has none; without a default JSON must have it.
    """

    name: str = ""
    default: Any = _REQUIRED

    def read(self, node: JsonNode, name: str) -> T:
        """Return the value that a node has under a name."""
        raise NotImplementedError

    def write(self, name: str, value: T) -> dict[str, object]:
        """Return the parts of a node that say the value."""
        return {name: value}

    def checked(self, op: str, name: str, value: T) -> T:
        """Return the value as a plan has it; refuse one that no plan can have."""
        return value


class Text(JsonField[str]):
    """A text that is not empty."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> str:
        """Take a text."""
        return node.take(name, str, "a text")

    def checked(self, op: str, name: str, value: str) -> str:
        """Refuse an empty one."""
        check_name(op, name, value)
        return value


class Number(JsonField[int]):
    """A whole number from 1 on, of 31 bits."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> int:
        """Take a number."""
        return node.take(name, int, "a whole number")

    def checked(self, op: str, name: str, value: int) -> int:
        """Refuse one that is out of range."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise wrong(op, f"{name}={shown(value)}", "give how many rows to keep of each key: at least 1")
        return value


class Flag(JsonField[bool]):
    """True or false."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> bool:
        """Take it."""
        return node.take(name, bool, "true or false")

    def checked(self, op: str, name: str, value: bool) -> bool:  # noqa: FBT001 - the value of a field
        """Refuse anything else."""
        if not isinstance(value, bool):
            raise wrong(op, f"{name}={shown(value)}", "say true or false")
        return value


@dataclass(frozen=True, slots=True)
class Choice(JsonField[str]):
    """One of two words.

    Attributes
    ----------
    among : tuple of str
    """

    among: tuple[str, str] = ("", "")

    def read(self, node: JsonNode, name: str) -> str:
        """Take a text."""
        return node.take(name, str, "a text")

    def checked(self, op: str, name: str, value: str) -> str:
        """Refuse another word."""
        if value not in self.among:
            raise wrong(op, f"{name}={shown(value)}", f"say {self.among[0]!r} or {self.among[1]!r}")
        return value


@dataclass(frozen=True, slots=True)
class Texts(JsonField[tuple[str, ...]]):
    """Names, each once.

    Attributes
    ----------
    for_none : str
        The hint where there are none; there may be none unless given.
    as_set : bool
        Whether their order says nothing: they are sorted.
    """

    for_none: str = ""
    as_set: bool = False

    def read(self, node: JsonNode, name: str) -> tuple[str, ...]:
        """Take a list."""
        return node.texts(name)

    def write(self, name: str, value: tuple[str, ...]) -> dict[str, object]:
        """Return a list."""
        return {name: list(value)}

    def checked(self, op: str, name: str, value: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse one that is there twice."""
        check_names(op, name, value)
        if self.for_none and not value:
            raise wrong(op, f"{name}=[]", self.for_none)
        return tuple(sorted(value)) if self.as_set else value


class Ordering(JsonField[tuple[tuple[str, str], ...]]):
    """Columns and their directions; in JSON a column alone is ``desc``."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> tuple[tuple[str, str], ...]:
        """Take a list."""
        found = []
        hint = 'give columns, the greatest first, or pairs such as ["price", "asc"]'
        for each in node.take(name, list, "a list of columns"):
            pair = [each, "desc"] if isinstance(each, str) else each
            if not are_texts(pair) or len(pair) != 2:
                raise unreadable(node.place, f"{name}={shown(each)}", hint)
            found.append((pair[0], pair[1]))
        return tuple(found)

    def write(self, name: str, value: tuple[tuple[str, str], ...]) -> dict[str, object]:
        """Return a list."""
        return {name: [column if way == "desc" else [column, way] for column, way in value]}

    def checked(self, op: str, name: str, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Refuse no columns, one twice, and other directions."""
        check_names(op, name, tuple(column for column, _ in value))
        for column, way in value:
            if way not in ("asc", "desc"):
                raise wrong(op, f"{name}={shown([column, way])}", "say 'asc' or 'desc'")
        if not value:
            raise wrong(op, f"{name}=[]", "name the columns that say which row is newer or greater")
        return value


class Columns(JsonField[tuple[tuple[str, str], ...]]):
    """Columns that come out, each with what it is called in the input; an object ``renamed`` has those that differ."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> tuple[tuple[str, str], ...]:
        """Take a list, and an object."""
        names = list(node.texts(name)) if node.has(name) else []
        renamed = node.take("renamed", dict, "an object of texts") if node.has("renamed") else {}
        if not are_texts(list(renamed.values())):
            raise unreadable(node.place, f"renamed={shown(renamed)}", "give an object of texts")
        names += sorted(set(renamed) - set(names))
        return tuple((each, renamed.get(each, each)) for each in names)

    def write(self, name: str, value: tuple[tuple[str, str], ...]) -> dict[str, object]:
        """Return a list, and an object where any are renamed."""
        renamed = {new: old for new, old in value if new != old}
        return {name: [new for new, _ in value], **({"renamed": renamed} if renamed else {})}

    def checked(self, op: str, name: str, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Refuse no columns, one twice, and what is computed."""
        for new, old in value:
            check_name(op, name, new)
            check_name(op, name, old)
        check_once(op, name, [new for new, _ in value])
        if not value:
            raise wrong(op, f"no {name}", "name the columns that come out")
        return value


class Values(JsonField[Mapping[str, Aggregation]]):
    """Values of groups, by the name that comes out: what is computed, and of which column."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> Mapping[str, Aggregation]:
        """Take an object."""
        found = {}
        for each, value in node.take(name, dict, 'an object such as {"n": ["count"]}').items():
            if not are_texts(value) or len(value) not in (1, 2):
                hint = 'give a list: ["count"], or what to compute and of which column, ["sum", "euro"]'
                raise unreadable(node.place, f"{name} {each}={shown(value)}", hint)
            found[each] = Aggregation(*value)
        return found

    def write(self, name: str, value: Mapping[str, Aggregation]) -> dict[str, object]:
        """Return an object."""
        return {name: {each: [of.kind] if of.column is None else [of.kind, of.column] for each, of in value.items()}}

    def checked(self, op: str, name: str, value: Mapping[str, Aggregation]) -> Mapping[str, Aggregation]:
        """Refuse no values and unknown ones, and sort them."""
        for each, of in value.items():
            check_name(op, name, each)
            if of.kind not in _KINDS:
                raise wrong(op, f"{name} {each}={shown([of.kind])}", f"choose among {', '.join(_KINDS)}")
            if of.column is None and of.kind != "count":
                raise wrong(op, f"{name} {each}={shown([of.kind])} of no column", "name the column after what it is")
            if of.column is not None:
                check_name(op, name, of.column)
        if not value:
            raise wrong(op, f"no {name}", "give at least one; for the keys alone use op 'distinct'")
        return dict(sorted(value.items()))


def _planned_fields(operator: Operator | type[Operator]) -> list[tuple[str, str, JsonField[Any]]]:
    """Return the fields that stand in JSON: the name of the field, its name in JSON, and how it stands there."""
    found: list[tuple[str, str, JsonField[Any]]] = []
    for each in fields(operator):  # type: ignore[arg-type]  # each operator is a dataclass
        kind = each.metadata.get("plan")
        if kind is not None:
            found.append((each.name, kind.name or each.name, kind))
    return found


def checked_operator(operator: Operator) -> Operator:
    """Return an operator as a plan has it.

    Raises
    ------
    InvalidUsageError
        If no plan can have it.
    """
    op = operator.op
    if not op:
        hint = "give one that a plan's JSON has a word for"
        raise wrong(type(operator).__name__, "an operator that no plan has", hint)
    found = {name: kind for name, _, kind in _planned_fields(operator)}
    for each in fields(operator):  # type: ignore[arg-type]  # each operator is a dataclass
        usual = each.default if each.default_factory is MISSING else each.default_factory()
        value = getattr(operator, each.name)
        is_usual = value is usual or (type(value) is type(usual) and value == usual)
        if each.name not in found and not is_usual:
            raise wrong(op, f"{each.name}={shown(value)}", "leave it out: no plan has it")
    values = {}
    for field, name, kind in _planned_fields(operator):
        value = getattr(operator, field)
        values[field] = value if value is kind.default else kind.checked(op, name, value)
    operator.check_plan()
    return replace(operator, **values)  # type: ignore[type-var]  # each operator is a dataclass


def node_of(operator: Operator) -> dict[str, object]:
    """Return what an operator's text says beside `op` and its inputs."""
    said: dict[str, object] = {}
    for field, name, kind in _planned_fields(operator):
        value = getattr(operator, field)
        if kind.default is _REQUIRED or value != kind.default:
            said |= kind.write(name, value)
    return said


def read_operator(kind: type[Operator], node: JsonNode) -> Operator:
    """Return the operator that a node says; the caller closes it."""
    values = {
        field: each.default if each.default is not _REQUIRED and not node.has(name) else each.read(node, name)
        for field, name, each in _planned_fields(kind)
    }
    return kind(**values)
