"""Rust code for a capture: the declarations of its types, and a program that replays it.

``spark-timely types`` prints what `rust_types` returns, for a crate that uses timely. The declared types have the bytes
that `layout` reads and writes. bincode writes no names, so a name that Rust does not allow becomes one that it allows,
and a tuple longer than those that Rust can print becomes a struct.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from spark_timely.errors import InvalidUsageError, shown
from spark_timely.interop.exporting import chosen_types
from spark_timely.interop.importing import CaptureTypes
from spark_timely.interop.schema import (
    UNIT,
    Choice,
    Decimal,
    Map,
    Option,
    Record,
    Scalar,
    Type,
    Vec,
    type_text,
)
from spark_timely.interop.selection import Selection
from spark_timely.log import Log

TIMELY: Final[Mapping[str, str]] = {"0.31": "0.31.0", "0.32": "0.32.0"}
"""Versions of the crate timely that programs are printed for, and what of each they were compiled with."""

_RUST = {
    **{f"{sign}{bits}": f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
    **{"bool": "bool", "f32": "f32", "f64": "f64", "string": "String", "bytes": "Vec<u8>", "unit": "()"},
    **{"date_days": "i32", "timestamp_us": "i64", "timestamp_ntz_us": "i64"},
}
_UNITS = {
    "date_days": "days since 1970-01-01",
    "timestamp_us": "microseconds since 1970-01-01 UTC",
    "timestamp_ntz_us": "microseconds since 1970-01-01 of a clock without a zone",
}
_LONGEST_TUPLE = 12
# fmt: off
_KEYWORDS = frozenset([
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn", "else", "enum",
    "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod",
    "move", "mut", "override", "priv", "pub", "ref", "return", "static", "struct", "trait", "true", "try", "type",
    "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
])
# fmt: on
_NEVER = frozenset(["self", "Self", "super", "crate", "_"])


def rust_types(
    log: Log,
    *,
    types: CaptureTypes | None = None,
    columns: Sequence[str] | None = None,
    casts: Mapping[str, str] | None = None,
    timely: str = "0.31",
) -> str:
    """Return Rust for what a log is exported as: its types, and a program that replays the captures.

    Parameters
    ----------
    log : Log
    types, columns, casts
        As for `export_log`.
    timely : str
        Version of the crate that the program is for; a key of `TIMELY`.

    Returns
    -------
    str
        A whole `main.rs`; what its `Cargo.toml` needs is in a comment. For a collection log no program: its messages
        are lines of JSON.

    Raises
    ------
    InvalidUsageError, SchemaMismatchError
        As `export_log`; and for another version.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("at", pa.timestamp("us", "UTC"))]), minimum=(0,))
    >>> print(*rust_types(log).split("/// ")[2].splitlines()[:6], sep=chr(10))
    A record: `{at: option<timestamp_us>}`.
    #[derive(Clone, Debug, PartialEq, PartialOrd, Eq, Ord, Hash, Serialize, Deserialize)]
    pub struct Record {
        pub at: Option<i64>, // microseconds since 1970-01-01 UTC
    }
    <BLANKLINE>
    """
    if timely not in TIMELY:
        msg = f"could not write Rust for log {log.path!r}: found timely={shown(timely)}"
        raise InvalidUsageError(msg, hint=f"give one of the versions {', '.join(TIMELY)}")
    chosen = chosen_types(log, types, Selection.parse(columns, casts))
    collection = log.kind == "collection"
    parts = [_head(chosen, timely, collection=collection), declarations(chosen)]
    if not collection:
        parts.append(_program(chosen, timely))
    return "\n".join(parts)


def declarations(types: CaptureTypes) -> str:
    """Return the types `Time` and `Record` in Rust.

    Examples
    --------
    >>> print(declarations(CaptureTypes.parse("u64", "(string, vec<u8>)")))
    /// A time: `u64`.
    pub type Time = u64;
    <BLANKLINE>
    /// A record: `(string, vec<u8>)`.
    pub type Record = (String, Vec<u8>);
    <BLANKLINE>
    """
    names = _Names(exact=not _has_floats(types.record))
    record = types.record
    made = names.struct(record, "Record") if isinstance(record, Record) and record.kind == "struct" else None
    made = made or (names.struct(record, "Record") if isinstance(record, Record) and _is_long(record) else None)
    text = names.of(record, "RecordValue") if made is None else made
    lines = [
        f"/// A time: `{type_text(types.time)}`{_unit(types.time, ', ')}.",
        f"pub type Time = {_time(types.time)};",
    ]
    said = [f"/// A record: `{_one_line(type_text(record))}`."]
    if made is None:
        alias = [*said, f"pub type Record = {text};{_unit(record, ' // ')}"]
        blocks = [alias, *names.blocks]
    else:
        *inner, outer = names.blocks
        blocks = [[*said, *outer], *inner]
    return "\n".join("\n".join(block) + "\n" for block in [lines, *blocks])


class _Names:
    """Writes types, and keeps the declarations of those that need a name."""

    def __init__(self, *, exact: bool) -> None:
        traits = ["Clone", "Debug", "PartialEq", "PartialOrd", *(["Eq", "Ord", "Hash"] if exact else [])]
        self._derive = f"#[derive({', '.join([*traits, 'Serialize', 'Deserialize'])})]"
        self._taken: set[str] = {"Record", "Time"}
        self.blocks: list[list[str]] = []

    def of(self, type_: Type, name: str) -> str:
        """Return a type; `name` is what a struct in it is called."""
        if isinstance(type_, Scalar):
            return _RUST[type_.kind]
        if isinstance(type_, Decimal):
            return "i128"
        if isinstance(type_, Option):
            return f"Option<{self.of(type_.item, name)}>"
        if isinstance(type_, Vec):
            return f"Vec<{self.of(type_.item, name)}>"
        if isinstance(type_, Map):
            return f"Vec<({self.of(type_.key, f'{name}Key')}, {self.of(type_.item, f'{name}Value')})>"
        if isinstance(type_, Choice):
            return self._enum(type_, self._new(name))
        if type_.kind == "duration":
            return "std::time::Duration"
        if type_.kind == "struct" or _is_long(type_):
            return self.struct(type_, self._new(name))
        items = [self.of(item, f"{name}{i}") for i, item in enumerate(type_.items)]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def struct(self, type_: Record, name: str) -> str:
        """Declare a struct, and return its name."""
        lines = [self._derive, f"pub struct {name} {{"]
        for field, known, item in zip(_fields(type_.names), type_.names, type_.items, strict=True):
            if field.removeprefix("r#") != known:
                lines.append(f"    #[serde(rename = {_literal(known)})]")
            lines.append(f"    pub {field}: {self.of(item, name + _camel(known))},{_unit(item, ' // ')}")
        self.blocks.append([*lines, "}"])
        return name

    def _enum(self, type_: Choice, name: str) -> str:
        lines = [self._derive, f"pub enum {name} {{"]
        for variant, known, item in zip(_fields(type_.names), type_.names, type_.items, strict=True):
            if variant.removeprefix("r#") != known:
                lines.append(f"    #[serde(rename = {_literal(known)})]")
            held = "" if item == UNIT else f"({self.of(item, name + _camel(known))})"
            lines.append(f"    {variant}{held},{_unit(item, ' // ')}")
        self.blocks.append([*lines, "}"])
        return name

    def _new(self, name: str) -> str:
        found, n = name, 2
        while found in self._taken:
            found, n = f"{name}{n}", n + 1
        self._taken.add(found)
        return found


def _is_long(type_: Record) -> bool:
    return type_.kind != "duration" and len(type_.items) > _LONGEST_TUPLE


def _has_floats(type_: Type) -> bool:
    if isinstance(type_, Scalar):
        return type_.kind in ("f32", "f64")
    if isinstance(type_, Option | Vec):
        return _has_floats(type_.item)
    if isinstance(type_, Map):
        return _has_floats(type_.key) or _has_floats(type_.item)
    return not isinstance(type_, Decimal) and any(map(_has_floats, type_.items))


def _time(type_: Type) -> str:
    """Return a type of times; a product of more than two is one of products, from the left."""
    if isinstance(type_, Scalar):
        return _RUST[type_.kind]
    assert isinstance(type_, Record)
    if type_.kind == "duration":
        return "std::time::Duration"
    text, *others = [_time(item) for item in type_.items]
    for other in others:
        text = f"Product<{text}, {other}>"
    return text


def _unit(type_: Type, before: str) -> str:
    """Return what the integers in a type count, if any do."""
    found: list[str] = []

    def visit(type_: Type) -> None:
        if isinstance(type_, Scalar):
            found.append(_UNITS.get(type_.kind, ""))
        elif isinstance(type_, Decimal):
            found.append(f"times 10^{type_.scale}" if type_.scale else "")
        elif isinstance(type_, Option | Vec):
            visit(type_.item)
        elif isinstance(type_, Map):
            visit(type_.key)
            visit(type_.item)
        elif isinstance(type_, Record) and type_.kind in ("tuple", "product") and not _is_long(type_):
            for item in type_.items:
                visit(item)

    visit(type_)
    units = [unit for unit in dict.fromkeys(found) if unit]
    return before + "; ".join(units) if units else ""


def _fields(names: Sequence[str]) -> list[str]:
    """Return names that Rust has, for those of a struct, all different."""
    found: list[str] = []
    for name in names:
        field = unicodedata.normalize("NFC", name)
        if not field.isidentifier() or field in _NEVER:
            field = re.sub(r"\W", "_", field)
            field = field if field.isidentifier() and field not in _NEVER else f"_{field}"
        while field in found:
            field += "_"
        found.append(field)
    return [f"r#{field}" if field in _KEYWORDS else field for field in found]


def _camel(name: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", name)
    return "".join(word[0].upper() + word[1:] for word in words) or "Part"


def _literal(text: str) -> str:
    """Return a string of Rust."""
    kept = [c if c.isprintable() and c not in '"\\' else f"\\u{{{ord(c):x}}}" for c in text]
    return f'"{"".join(kept)}"'


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _head(types: CaptureTypes, timely: str, *, collection: bool) -> str:
    needs = ['serde = { version = "1", features = ["derive"] }']
    uses = ["use serde::{Deserialize, Serialize};"]
    lines = ["#![allow(dead_code, non_snake_case, non_camel_case_types, uncommon_codepoints)]"]
    if collection:
        needs.append('serde_json = "1"')
        lines.append("// Updates are lines of JSON, as serde_json writes differential_dataflow::capture::Message.")
    else:
        needs.append(f'timely = "={TIMELY[timely]}"')
        uses = [
            "use std::fs::File;",
            "",
            *uses,
            "use timely::dataflow::operators::capture::{EventReader, Replay};",
            "use timely::dataflow::operators::Inspect;",
        ]
    if "Product<" in _time(types.time):
        needs += [] if not collection else [f'timely = "={TIMELY[timely]}"']
        uses.append("use timely::order::Product;")
    lines += ["// In Cargo.toml, below [dependencies]:", *(f"// {need}" for need in needs), "", *uses]
    return "\n".join(lines) + "\n"


_REPLAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "0.31": (
        "readers.replay_into(scope).inspect_batch(|time, rows| {",
        '    rows.iter().for_each(|row| println!("{time:?} {row:?}"));',
        "});",
    ),
    "0.32": (
        "readers.replay_into(scope).inspect_core(|event| {",
        "    if let Ok((stamp, rows)) = event {",
        '        rows.iter().for_each(|row| println!("{:?} {row:?}", stamp.elements()));',
        "    }",
        "});",
    ),
}


def _program(types: CaptureTypes, timely: str) -> str:
    """Return a program that prints what captures hold, a worker for each."""
    opened = _opened(types.time)
    indent = "        "
    body = [f"worker.dataflow::<{opened[0]}, _, _>(|scope| {{"]
    ends = ["});"]
    for inner in opened[1:]:
        body.append(f'{"    " * len(body)}scope.scoped::<{inner}, _, _>("inner", |scope| {{')
        ends.insert(0, f"{'    ' * len(ends)}}})")
    depth = len(body)
    body += [f"{'    ' * depth}{line}" for line in _REPLAYS[timely]]
    return "\n".join(
        [
            "/// Prints what the captures hold, each replayed by a worker; ends when all of them are closed.",
            "fn main() {",
            "    let files: Vec<String> = std::env::args().skip(1).collect();",
            "    timely::execute(timely::Config::process(files.len()), move |worker| {",
            '        let file = File::open(&files[worker.index()]).expect("a capture");',
            "        let readers = vec![EventReader::<Time, Vec<Record>, _>::new(file)];",
            *(indent + line for line in [*body, *ends]),
            "    })",
            "    .unwrap();",
            "}",
            "",
        ]
    )


def _opened(type_: Type) -> list[str]:
    """Return the times of the scopes in which a dataflow of such times is built, from the outermost."""
    if not isinstance(type_, Record) or type_.kind == "duration":
        return [_time(type_)]
    outer = _opened(type_.items[0])
    texts = [_time(Record(type_.names[:n], type_.items[:n], "product")) for n in range(2, len(type_.items) + 1)]
    return [*outer, *texts]
