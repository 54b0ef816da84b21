"""The types of captured records and times: a small language to declare them, and their Arrow types.

The schema of a capture: all of `interop` uses it. `parse_type` reads a declaration, `type_text` writes it; `layout` has
the bytes of each type, and `rust` the declarations in Rust. Schemas of logs are Arrow's, and not here.

A capture file does not say what is in it; its reader declares that. A type is written as Rust writes it, or shorter:

============================  ======================================  ==================================
written                       also                                    Arrow
============================  ======================================  ==================================
``u8`` … ``u64``, ``i8`` …    ``usize``, ``isize`` (64 bits)          unsigned and signed integers
``bool``, ``f32``, ``f64``                                            bool, float, double
``string``                    ``String``, ``str``                     string
``bytes``                     ``binary``                              binary
``date_days``                 ``date``; in Rust ``i32``               date
``timestamp_us``              ``timestamp``; in Rust ``i64``          timestamp in UTC
``timestamp_ntz_us``          ``timestamp_ntz``; in Rust ``i64``      timestamp without a zone
``decimal(p, s)``             in Rust ``i128``, without the point     decimal of p digits, s after the point
``i128``                                                              decimal of 38 digits
``option<T>``                 ``Option<T>``                           T that may be null
``vec<T>``                    ``Vec<T>``, ``[T]``                     list of T
``map<K, V>``                 ``BTreeMap<K, V>``, ``HashMap<K, V>``   map; the bytes are those of ``Vec<(K, V)>``
``(T, U)``                    ``(T,)`` of one                         struct of ``f0``, ``f1``
``{name: T, n: U}``           ``Name {…}``                            struct of ``name``, ``n``
``enum{A, B(T), C{n: T}}``    ``A | B(T)`` between the braces         struct of ``variant`` and one field
                                                                      per variant that holds something
``duration``                  ``Duration``                            struct of ``secs``, ``nanos``
``()``                        ``unit``                                null
``product<T, U>``             ``Product<T, U>``, ``(T, U)``           times only: a coordinate each
============================  ======================================  ==================================

A record that is a tuple or a struct becomes one column per field; any other becomes the column ``value``. A name that
is none in Rust is written in double quotes, as JSON writes it: ``{"order-id": u64}``.

What Rust has no type of its own for is an integer there, and the type says its unit: days since 1970-01-01,
microseconds since then (in UTC, or of a clock without a zone), a decimal times a power of ten. A map is a list of
pairs: pairs keep their order and those that come twice, and a key need not be one that Rust can compare, as floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown

METADATA_KEY = b"timely.record"
"""Metadata of an Arrow schema under which the declared type is kept, as text."""

MAX_DEPTH = 32

_ARROW: dict[str, pa.DataType] = {
    **{f"u{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    **{f"i{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    "bool": pa.bool_(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date_days": pa.date32(),
    "timestamp_us": pa.timestamp("us", "UTC"),
    "timestamp_ntz_us": pa.timestamp("us"),
    "unit": pa.null(),
}
_SCALARS = {kind: name for name, kind in _ARROW.items()} | {pa.large_string(): "string", pa.large_binary(): "bytes"}
_ALIASES = {
    **{"usize": "u64", "isize": "i64", "str": "string", "text": "string", "binary": "bytes"},
    **{"date": "date_days", "timestamp": "timestamp_us", "timestamp_ntz": "timestamp_ntz_us"},
    **{"btreemap": "map", "hashmap": "map"},
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_DIGITS = re.compile(r"[0-9]{1,4}")
MAX_DIGITS = 38
"""Digits of the longest decimal: a log has no longer ones, and 16 bytes hold all of that length."""

WIRE_KINDS = {"date_days": "i32", "timestamp_us": "i64", "timestamp_ntz_us": "i64"}
"""What is an integer in bytes, and what integer."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, a truth value, a string, a byte string, or the unit.

    Parameters
    ----------
    kind : str
        `u8` … `i64`, `bool`, `f32`, `f64`, `string`, `bytes`, `date_days`, `timestamp_us`, `timestamp_ntz_us` or
        `unit`.
    """

    kind: str


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal number.

    Parameters
    ----------
    digits, scale : int
        How many digits it has, and how many of them are after the point.
    """

    digits: int
    scale: int


@dataclass(frozen=True, slots=True)
class Option:
    """A value that may be missing.

    Parameters
    ----------
    item : Type
    """

    item: Type


@dataclass(frozen=True, slots=True)
class Vec:
    """Any number of values of one type.

    Parameters
    ----------
    item : Type
    """

    item: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Any number of pairs of a key and a value, in order.

    Parameters
    ----------
    key, item : Type
    """

    key: Type
    item: Type


@dataclass(frozen=True, slots=True)
class Record:
    """Several values in order: a tuple, a struct, or a duration.

    Parameters
    ----------
    names : tuple of str
    items : tuple of Type
    kind : str
        `tuple`, `struct`, `duration`, or `product` (of times).
    """

    names: tuple[str, ...]
    items: tuple[Type, ...]
    kind: str = "struct"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several variants, each of which holds something, or nothing.

    Parameters
    ----------
    names : tuple of str
        In the order of their numbers.
    items : tuple of Type
        What each holds; the unit for nothing.
    """

    names: tuple[str, ...]
    items: tuple[Type, ...]


Type: TypeAlias = Scalar | Decimal | Option | Vec | Map | Record | Choice

UNIT = Scalar("unit")
DURATION = Record(("secs", "nanos"), (Scalar("u64"), Scalar("u32")), "duration")


@lru_cache(maxsize=256)
def parse_type(text: str) -> Type:
    """Read a type.

    Raises
    ------
    InvalidUsageError
        Naming the place where the text cannot be read on, and what may stand there.

    Examples
    --------
    >>> type_text(parse_type("(String, Option<u64>, Vec<u8>)"))
    '(string, option<u64>, vec<u8>)'
    >>> parse_type("(string, u46)")
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidUsageError: [TIMELY_INVALID_USAGE] could not read type '(string, u46)': found \
'u46' at character 10 — hint: ...
    """
    return _Parser(text).whole()


class _Parser:
    """A parser by descent; the text is what a person typed, so its length bounds everything."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> Type:
        found = self.type(0)
        if self._peek():
            raise self._wrong(hint="write tuples in parentheses: '(string, u64)'; the type ends before that")
        return found

    def type(self, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise self._wrong(hint=f"nest types at most {MAX_DEPTH} deep")
        if self._take("("):
            items, comma = self._items(")", depth)
            if len(items) == 1 and not comma:
                return items[0]
            return _tuple(items) if items else UNIT
        if self._take("["):
            item = self._sequence(self.type(depth + 1))
            self._need("]")
            return item
        if self._peek() == "{":
            return self._fields(depth)
        name = self._name("a type")
        lower = name.lower()
        lower = _ALIASES.get(lower, lower)
        if lower == "enum" and self._peek() == "{":
            return self._variants(depth)
        if self._peek() == "{":
            return self._fields(depth)
        if lower in ("option", "vec") and self._take("<"):
            item = self.type(depth + 1)
            item = _option(item) if lower == "option" else self._sequence(item)
            self._need(">")
            return item
        if lower == "map" and self._take("<"):
            return self._map(depth)
        if lower == "i128":
            return Decimal(MAX_DIGITS, 0)
        if lower == "decimal" and self._take("("):
            return self._decimal()
        if lower == "product" and self._take("<"):
            items, _ = self._items(">", depth)
            if len(items) < 2:
                raise self._wrong(hint="give a product two parts: 'product<u64, u64>'")
            return Record(_numbered(items), items, "product")
        if lower == "duration":
            return DURATION
        if lower in _ARROW:
            return Scalar(lower)
        self.at -= len(name)
        raise self._wrong(
            hint=f"use {', '.join(_ARROW)}, decimal(p, s), i128, duration, option<T>, vec<T>, map<K, V>, (T, U),"
            " {name: T}, enum{A, B(T)}, and for times product<T, U>"
        )

    def _map(self, depth: int) -> Map:
        items, _ = self._items(">", depth)
        if len(items) != 2 or isinstance(items[0], Option) or not _has_bytes(items[0]):
            raise self._wrong(hint="give a map a key that is there and a value: 'map<string, u64>'")
        return Map(*items)

    def _decimal(self) -> Decimal:
        digits = self._digits(1, MAX_DIGITS)
        scale = 0
        if self._take(","):
            scale = self._digits(0, digits)
        self._need(")")
        return Decimal(digits, scale)

    def _digits(self, low: int, high: int) -> int:
        self._peek()
        found = _DIGITS.match(self.text, self.at)
        if found is None or not low <= int(found.group()) <= high:
            raise self._wrong(hint=f"write a number from {low} to {high} here, as in 'decimal(12, 2)'")
        self.at = found.end()
        return int(found.group())

    def _items(self, close: str, depth: int) -> tuple[tuple[Type, ...], bool]:
        items: list[Type] = []
        comma = False
        while not self._take(close):
            if items and not comma:
                raise self._wrong(hint=f"write ',' or {close!r} here")
            items.append(self.type(depth + 1))
            comma = self._take(",")
        return tuple(items), comma

    def _fields(self, depth: int) -> Type:
        self._need("{")
        names: list[str] = []
        items: list[Type] = []
        comma = True
        while not self._take("}"):
            if not comma:
                raise self._wrong(hint="write ',' or '}' here")
            names.append(self._new_name(names))
            self._need(":")
            items.append(self.type(depth + 1))
            comma = self._take(",")
        return Record(tuple(names), tuple(items)) if names else UNIT

    def _variants(self, depth: int) -> Type:
        self._need("{")
        names: list[str] = []
        items: list[Type] = []
        comma = True
        while not self._take("}"):
            if not comma:
                raise self._wrong(hint="write ',', '|' or '}' here")
            names.append(self._new_name([*names, "variant"]))
            if self._take("("):
                held, _ = self._items(")", depth)
                items.append(held[0] if len(held) == 1 else _tuple(held) if held else UNIT)
            else:
                items.append(self._fields(depth) if self._peek() == "{" else UNIT)
            comma = self._take(",") or self._take("|")
        if not names:
            raise self._wrong(hint="give the enum a variant")
        return Choice(tuple(names), tuple(items))

    def _sequence(self, item: Type) -> Type:
        if not _has_bytes(item):
            raise self._wrong(hint="declare what a vec holds as something with bytes: a vec of units is only a number")
        return Vec(item)

    def _new_name(self, known: Sequence[str]) -> str:
        quoted = self._peek() == '"'
        at = self.at
        name = self._quoted() if quoted else self._name("a name")
        if name.lower() in {each.lower() for each in known}:
            self.at = at
            raise self._wrong(hint="give names that differ, not only in case")
        return name

    def _quoted(self) -> str:
        found = _QUOTED.match(self.text, self.at)
        try:
            name = json.loads(found.group()) if found else ""
        except ValueError:
            name = ""
        if not name or found is None:
            raise self._wrong(hint="write a name in double quotes as JSON writes it")
        self.at = found.end()
        return str(name)

    def _name(self, what: str) -> str:
        self._peek()
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise self._wrong(hint=f"write {what} here")
        self.at = found.end()
        return found.group()

    def _peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def _take(self, sign: str) -> bool:
        if self._peek() != sign:
            return False
        self.at += 1
        return True

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._wrong(hint=f"write {sign!r} here")

    def _wrong(self, *, hint: str) -> InvalidUsageError:
        self._peek()
        word = _NAME.match(self.text, self.at)
        found = "its end" if self.at >= len(self.text) else shown(word.group() if word else self.text[self.at])
        msg = f"could not read type {shown(self.text)}: found {found} at character {self.at + 1}"
        return InvalidUsageError(msg, hint=hint)


def _numbered(items: Sequence[Type]) -> tuple[str, ...]:
    return tuple(f"f{i}" for i in range(len(items)))


def _tuple(items: Sequence[Type]) -> Record:
    return Record(_numbered(items), tuple(items), "tuple")


def _option(item: Type) -> Type:
    if item == UNIT:
        return Scalar("bool")  # the same byte
    if isinstance(item, Option):
        # Arrow has one kind of null only: what is inside gets a place of its own. The same bytes.
        return Option(Record(("some",), (item,)))
    return Option(item)


def _has_bytes(item: Type) -> bool:
    return any(map(_has_bytes, item.items)) if isinstance(item, Record) else item != UNIT


def type_text(type_: Type) -> str:
    """Write a type, in one way only.

    Examples
    --------
    >>> type_text(parse_type("Point{x:f64,y:f64}"))
    '{x: f64, y: f64}'
    """
    if isinstance(type_, Scalar):
        return "()" if type_ == UNIT else type_.kind
    if isinstance(type_, Option):
        return f"option<{type_text(type_.item)}>"
    if isinstance(type_, Vec):
        return f"vec<{type_text(type_.item)}>"
    if isinstance(type_, Map):
        return f"map<{type_text(type_.key)}, {type_text(type_.item)}>"
    if isinstance(type_, Decimal):
        whole = (type_.digits, type_.scale) == (MAX_DIGITS, 0)
        return "i128" if whole else f"decimal({type_.digits}, {type_.scale})"
    parts = [type_text(item) for item in type_.items]
    if isinstance(type_, Choice):
        held = [
            _written(name) if item == UNIT else f"{_written(name)}({part})" for name, item, part in _zip(type_, parts)
        ]
        return f"enum{{{', '.join(held)}}}"
    if type_.kind == "duration":
        return "duration"
    if type_.kind == "product":
        return f"product<{', '.join(parts)}>"
    if type_.kind == "tuple":
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    return f"{{{', '.join(f'{_written(name)}: {part}' for name, _, part in _zip(type_, parts))}}}"


def _written(name: str) -> str:
    """Return a name as it stands in a type."""
    return name if _NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _zip(type_: Record | Choice, parts: Sequence[str]) -> zip[tuple[str, Type, str]]:
    return zip(type_.names, type_.items, parts, strict=True)


def arrow_type(type_: Type) -> pa.DataType:
    """Return the Arrow type of a value.

    Examples
    --------
    >>> arrow_type(parse_type("vec<option<u16>>"))
    ListType(list<element: uint16>)
    """
    if isinstance(type_, Scalar):
        return _ARROW[type_.kind]
    if isinstance(type_, Option):
        return arrow_type(type_.item)
    if isinstance(type_, Vec):
        return pa.list_(_field("element", type_.item))
    if isinstance(type_, Map):
        return pa.map_(arrow_type(type_.key), _field("value", type_.item))
    if isinstance(type_, Decimal):
        return pa.decimal128(type_.digits, type_.scale)
    if isinstance(type_, Record):
        return pa.struct([_field(name, item) for name, item in zip(type_.names, type_.items, strict=True)])
    held = [
        pa.field(name, arrow_type(item)) for name, item in zip(type_.names, type_.items, strict=True) if item != UNIT
    ]
    return pa.struct([pa.field("variant", pa.string(), nullable=False), *held])


def _field(name: str, item: Type) -> pa.Field:
    return pa.field(name, arrow_type(item), nullable=isinstance(item, Option) or item == UNIT)


def columns_of(type_: Type) -> tuple[tuple[str, Type], ...]:
    """Return name and type of each column that records become.

    Examples
    --------
    >>> columns_of(parse_type("u64"))
    (('value', Scalar(kind='u64')),)
    """
    if isinstance(type_, Record) and type_.kind in ("tuple", "struct"):
        return tuple(zip(type_.names, type_.items, strict=True))
    return (("value", type_),)


def arrow_schema(type_: Type) -> pa.Schema:
    """Return the schema of records of a type; its metadata names the type.

    Examples
    --------
    >>> arrow_schema(parse_type("(string, u64)")).names
    ['f0', 'f1']
    """
    fields = [_field(name, item) for name, item in columns_of(type_)]
    return pa.schema(fields, metadata={METADATA_KEY: type_text(type_)})


def type_of_schema(schema: pa.Schema) -> Type:
    """Return the type of records whose columns are those of a schema: the one that its metadata names, if any.

    Raises
    ------
    SchemaMismatchError
        If a column is of a type that captures do not have.

    Examples
    --------
    >>> type_text(type_of_schema(pa.schema([("name", pa.string()), pa.field("n", pa.int64(), nullable=False)])))
    '{name: option<string>, n: i64}'
    """
    named = (schema.metadata or {}).get(METADATA_KEY)
    if named is not None:
        return parse_type(named.decode())
    items = tuple(_from_field(field, field.name) for field in schema)
    names = tuple(schema.names)
    if names == ("value",) and not (isinstance(items[0], Record) and items[0].kind in ("tuple", "struct")):
        return items[0]
    kind = "tuple" if names == _numbered(items) else "struct"
    return Record(names, items, kind) if names else UNIT


def _from_field(field: pa.Field, column: str) -> Type:
    item = _from_arrow(field.type, column)
    return _option(item) if field.nullable and item != UNIT else item


def _from_arrow(type_: pa.DataType, column: str) -> Type:
    scalar = _SCALARS.get(type_)
    if scalar is not None:
        return Scalar(scalar)
    if type_ == pa.decimal128(20, 0):
        return Scalar("u64")  # as a log keeps it
    if pa.types.is_decimal(type_) and 0 <= type_.scale <= type_.precision <= MAX_DIGITS:
        return Decimal(type_.precision, type_.scale)
    if pa.types.is_timestamp(type_):
        return Scalar("timestamp_ntz_us" if type_.tz is None else "timestamp_us")
    if pa.types.is_date(type_):
        return Scalar("date_days")
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return Vec(_from_field(type_.value_field, column))
    if pa.types.is_map(type_):
        return Map(_from_arrow(type_.key_type, f"{column} (keys)"), _from_field(type_.item_field, column))
    if pa.types.is_struct(type_) and type_.num_fields:
        fields = [type_.field(i) for i in range(type_.num_fields)]
        names = tuple(field.name for field in fields)
        items = tuple(_from_field(field, f"{column}.{field.name}") for field in fields)
        return Record(names, items, "tuple" if names == _numbered(items) else "struct")
    msg = f"could not describe column {column!r} as a type: found {type_}"
    raise SchemaMismatchError(
        msg,
        hint="leave the column out (columns), or make of it one that captures have: integers, bool, floats, decimals,"
        " dates, timestamps in microseconds, strings, byte strings, lists, maps and structs",
        context={"column": column},
    )
