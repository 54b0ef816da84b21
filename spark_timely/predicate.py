"""SQL conditions evaluated on Arrow tables, with the meaning of Spark's ``where``.

`parse_predicate` reads the ``where`` of a replay (`datasource.splits`), of a peek (`answers.peek`) and of other
copies of rows, and gives a `Predicate` that chooses rows. The readers of whole statements (`answers.statements`,
`compute.sql`) ask `is_condition` whether a condition in one is such a predicate.

sqlglot reads the text as Spark's parser does. This module gives it its meaning, for the small part of SQL that Arrow
can compute as Spark does: three-valued logic; NaN equal to itself and greater than all other numbers; integers that
overflow are errors; decimals compared exactly. Anything else is refused by name: a wrong meaning would drop rows in
silence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.conf.kinds import in_utf8
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError, shown
from spark_timely.scanner import UnreadError, read_trees, scanned
from spark_timely.time.domain import TimeType

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Predicate", "is_condition", "parse_predicate"]

_BOOL: Final = pa.bool_()
_PLAIN: Final = re.compile(r"[^$'\"\\\x00-\x1f\x7f]*")

_SIGNS: Final = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_ARITHMETIC: Final = {"Add": "+", "Sub": "-", "Mul": "*"}
# As sqlglot calls the types of Spark's typed literals.
_MOMENTS: Final = {"DATE": pa.date32(), "TIMESTAMPTZ": pa.timestamp("us", "UTC")}
# Kinds of parts and what they may have: whatever else sqlglot notes of a part says something that is not known here.
_PARTS: Final = {
    **{kind: {"this", "expression"} for kind in ["And", "Or", "Is", *_SIGNS, *_ARITHMETIC]},
    **{kind: {"this"} for kind in ["Not", "Neg", "Paren", "Column", "Boolean"]},
    "Like": {"this", "expression", "negate"},
    "Between": {"this", "low", "high"},
    "In": {"this", "expressions"},
    "Cast": {"this", "to"},
    "Literal": {"this", "is_string"},
    "Null": set[str](),
}
_KNOWN: Final = (
    "use comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE, +, -, *, columns and literals; give anything else as "
    "an expression of pyarrow.compute"
)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on rows.

    Attributes
    ----------
    text : str
        As it was given.
    expression : pyarrow.compute.Expression
        True, false or null for each row.
    columns : tuple of str
        Columns that it needs.
    sql : str
        The same for Spark's parser, in words that mean one thing whatever the session's settings are: names as they
        are and quoted, texts in single quotes, moments with their zone, nothing that Spark would replace.
    """

    text: str
    expression: pc.Expression
    columns: tuple[str, ...]
    sql: str

    def holds(self, rows: pa.RecordBatch, /) -> pa.BooleanArray:
        """Tell for which rows the condition is true, in their order; for those for which it is null it is not.

        Raises
        ------
        InvalidUsageError
            If it cannot be computed, as where integers overflow.

        Examples
        --------
        >>> found = parse_predicate("n > 1", {"n": pa.int64()}, what="filter")
        >>> found.holds(pa.record_batch({"n": [1, None, 2]})).to_pylist()
        [False, False, True]
        """
        # Loads pandas, which most processes do without.
        from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

        source = Declaration("table_source", TableSourceNodeOptions(pa.Table.from_batches([rows])))
        computed = Declaration("project", ProjectNodeOptions([self.expression], ["holds"]))
        try:
            # Several threads would not keep the order.
            found = Declaration.from_sequence([source, computed]).to_table(use_threads=False)
        except pa.ArrowInvalid as error:
            msg = f"could not compute condition {shown(self.text)}: {error}"
            raise InvalidUsageError(msg, hint="leave out, or write differently, what goes beyond its type") from error
        return pc.fill_null(found["holds"], False).combine_chunks()  # noqa: FBT003 - as Arrow has it


@dataclass(frozen=True, slots=True)
class _Value:
    """A part of the condition.

    Attributes
    ----------
    expression : pyarrow.compute.Expression
    type : pyarrow.DataType
        Null for the literal ``NULL``.
    literal : object
        What stands there, if it is a literal and not null.
    """

    expression: pc.Expression
    type: pa.DataType
    literal: object = None


def parse_predicate(text: str, types: Mapping[str, pa.DataType], /, *, what: str) -> Predicate:
    """Return the condition that SQL text says, over columns of these types.

    Parameters
    ----------
    text : str
    types : mapping of str to pyarrow.DataType
        By column. Names are found without regard to case, as Spark does.
    what : str
        What is attempted, for errors.

    Raises
    ------
    InvalidUsageError
        If the text is no condition, or has parts that are not known here.
    SchemaMismatchError
        If it names no column, or compares what cannot be compared.

    Examples
    --------
    >>> rows = pa.table({"n": [5, 20, None], "k": ["a", "b", "b"]})
    >>> types = {"n": pa.int64(), "k": pa.string()}
    >>> found = parse_predicate("n BETWEEN 1 AND 9 OR k LIKE 'b%' AND n IS NULL", types, what="filter")
    >>> rows.filter(found.expression)["n"].to_pylist()
    [5, None]
    >>> found.columns
    ('n', 'k')
    """
    meaning = _Meaning(text, types, what)
    try:
        read = _read(text, what)
        expression = meaning.condition(read)
        sql = read.transform(meaning.written).sql(dialect="spark", comments=False)
    except RecursionError as error:
        raise _refused(text, what, "too many brackets") from error
    return Predicate(text, expression, tuple(meaning.columns), sql)


def is_condition(text: str, /) -> bool:
    """Tell whether a text is a condition of parts that are known here; which columns there are is not looked at.

    Examples
    --------
    >>> is_condition("n > 1 AND k IS NULL"), is_condition("abs(n) > 1"), is_condition("t.n > 1")
    (True, False, False)
    """
    try:
        return _is_known(_read(text, "read a condition"))
    except Exception:  # noqa: BLE001 - whatever sqlglot raises: it has not read the text
        return False


def _is_known(node: exp.Expr) -> bool:
    """Tell whether all parts of a condition are known, as `_Meaning` knows them."""
    parts = [node]
    while parts:  # no recursion: a chain may be longer than Python's stack is deep
        part = parts.pop()
        kind = type(part).__name__
        if kind not in _PARTS or any(value and name not in _PARTS[kind] for name, value in part.args.items()):
            return False
        if kind == "Is" and type(part.expression).__name__ != "Null":
            return False
        if kind == "In" and not part.expressions:
            return False
        if kind == "Cast":
            if type(part.this).__name__ != "Literal" or not part.this.is_string:
                return False
            if part.args["to"].sql() not in _MOMENTS:
                return False
        elif kind != "Column":
            parts.extend(part.iter_expressions())
    return True


def _read(text: str, what: str) -> exp.Expr:
    """Let sqlglot read the text."""
    if "\\" in text:
        raise _refused(text, what, "a backslash")
    if not in_utf8(text):
        raise _refused(text, what, "a text that is none in UTF-8")
    try:
        found = read_trees(text, scanned(text, what, condition=True))
    except UnreadError as error:
        raise _refused(text, what, str(error)) from error
    if len(found) != 1:
        raise _refused(text, what, f"{len(found)} conditions")
    return found[0]


def _refused(text: str, what: str, found: str) -> InvalidUsageError:
    return InvalidUsageError(f"could not {what}: found {found} in condition {shown(text)}", hint=_KNOWN)


class _Meaning:
    """The meaning of one condition for columns of these types."""

    def __init__(self, text: str, types: Mapping[str, pa.DataType], what: str) -> None:
        self._text, self._types, self._what = text, types, what
        self.columns: dict[str, None] = {}

    def condition(self, node: exp.Expr) -> pc.Expression:
        """Return what is true or false."""
        return self._bool(self._any(node)).expression

    def written(self, node: exp.Expr) -> exp.Expr:
        """Return a part as it is written for Spark, after `condition` has understood all."""
        from sqlglot import exp

        kind = type(node).__name__
        if kind == "Column":
            return exp.column(exp.to_identifier(self._name(node.name), quoted=True))
        if kind == "Cast":
            type_ = _MOMENTS[node.args["to"].sql()]
            scalar = self._scalar(node.this.this, type_)
            if pa.types.is_date(type_):
                return exp.func("date_from_unix_date", exp.convert(scalar.cast(pa.int32()).as_py()))
            # As micros: a number has no zone, and no year of five digits.
            return exp.func("timestamp_micros", _bigint(scalar.cast(pa.int64()).as_py()))
        if kind == "Literal" and node.is_string and not _PLAIN.fullmatch(node.this):
            # Spark replaces ${…}, and may or may not take a backslash for an escape.
            return exp.cast(exp.HexString(this=node.this.encode().hex()), "STRING")
        return node

    def _mismatch(self, found: str, hint: str) -> SchemaMismatchError:
        return SchemaMismatchError(f"could not {self._what}: found {found} in condition {shown(self._text)}", hint=hint)

    # What stands where ---------------------------------------------------------------------------------

    def _any(self, node: exp.Expr) -> _Value:
        """Return what a part means, wherever it stands."""
        kind = self._kind(node)
        if kind in ("And", "Or"):
            # A chain may be longer than Python's stack is deep.
            parts = [self.condition(part) for part in node.flatten(unnest=False)]
            return _Value(_paired(parts, and_ if kind == "And" else or_), _BOOL)
        if kind == "Not":
            return _Value(~self.condition(node.this), _BOOL)
        if kind in _SIGNS:
            return self._compared(self._one(node.this), _SIGNS[kind], self._one(node.expression))
        if kind == "Is" and self._kind(node.expression) == "Null":
            return _Value(pc.is_null(self._one(node.this).expression), _BOOL)
        if kind == "Between":
            value, low, high = (self._one(node.args[name]) for name in ("this", "low", "high"))
            above = self._compared(value, ">=", low).expression
            return _Value(above & self._compared(value, "<=", high).expression, _BOOL)
        if kind == "In" and node.expressions:
            value = self._one(node.this)
            equal = [self._compared(value, "=", self._one(each)).expression for each in node.expressions]
            return _Value(_paired(equal, or_), _BOOL)
        if kind == "Like":
            found = self._like(self._one(node.this), self._one(node.expression))
            return _Value(~found if node.args.get("negate") else found, _BOOL)
        return self._one(node)

    def _one(self, node: exp.Expr) -> _Value:
        """Return what a part means that stands beside an operator: without brackets, parsers differ on others."""
        kind = self._kind(node)
        if kind == "Paren":
            return self._any(node.this)
        if kind == "Column":
            return self._column(node.name)
        if kind in ("Boolean", "Null"):
            return self._literal(node.this) if kind == "Boolean" else _Value(pc.scalar(pa.scalar(None)), pa.null())
        if kind == "Literal":
            return self._literal(node.this if node.is_string else self._number(node.this))
        if kind == "Neg":
            return self._negated(self._one(node.this))
        if kind in _ARITHMETIC:
            return self._computed(self._one(node.this), _ARITHMETIC[kind], self._one(node.expression))
        if kind == "Cast" and node.this.is_string and (type_ := _MOMENTS.get(node.args["to"].sql())):
            return self._moment(node.this.this, type_)
        raise self._unknown(node)

    def _kind(self, node: exp.Expr) -> str:
        """Return what kind of part this is, one that is known."""
        kind = type(node).__name__
        if kind not in _PARTS or any(value and name not in _PARTS[kind] for name, value in node.args.items()):
            raise self._unknown(node)
        return kind

    def _unknown(self, node: exp.Expr) -> InvalidUsageError:
        return _refused(self._text, self._what, shown(node.sql(dialect="spark")))

    def _like(self, left: _Value, pattern: _Value) -> pc.Expression:
        if not pa.types.is_string(left.type) or not isinstance(pattern.literal, str):
            found = f"LIKE of type={left.type} and {pattern.expression}"
            raise self._mismatch(found, "LIKE takes a column of texts and a text")
        return pc.match_like(left.expression, pattern.literal)

    def _negated(self, value: _Value) -> _Value:
        if isinstance(value.literal, int | float | Decimal) and not isinstance(value.literal, bool):
            return self._literal(-value.literal)
        if pa.types.is_integer(value.type) or pa.types.is_floating(value.type):
            return _Value(pc.negate_checked(value.expression), value.type)
        msg = f"minus of type={value.type}"
        raise self._mismatch(msg, "negate numbers")

    def _number(self, text: str) -> float | Decimal:
        if text.isdigit():
            return int(text)
        number = float(text) if "e" in text.lower() else Decimal(text)
        if math.isinf(number):
            msg = f"number {text}"
            raise self._mismatch(msg, "doubles end at 1.8e308")
        return number

    # Meaning -----------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        found = [name] if name in self._types else [each for each in self._types if each.lower() == name.lower()]
        if len(found) != 1:
            msg = f"no column {name!r}"
            raise self._mismatch(msg, f"use one of the columns {shown(list(self._types))}")
        return found[0]

    def _column(self, name: str) -> _Value:
        found = self._name(name)
        type_ = self._types[found]
        if pa.types.is_large_string(type_):
            type_ = pa.string()
        self.columns[found] = None
        return _Value(pc.field(found), type_)

    def _literal(self, value: float | Decimal | str) -> _Value:
        if isinstance(value, bool):
            type_ = _BOOL
        elif isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:
                msg = f"number {value}"
                raise self._mismatch(msg, "numbers have 64 bits")
            type_ = pa.int32() if -(1 << 31) <= value < 1 << 31 else pa.int64()
        elif isinstance(value, Decimal):
            type_ = pa.scalar(value).type
        else:
            type_ = pa.float64() if isinstance(value, float) else pa.string()
        return _Value(pc.scalar(pa.scalar(value, type_)), type_, value)

    def _moment(self, text: str, type_: pa.DataType) -> _Value:
        return _Value(pc.scalar(self._scalar(text, type_)), type_)

    def _scalar(self, text: str, type_: pa.DataType) -> pa.Scalar:
        # As Spark writes them: neither a day for a moment, nor a number with its unit.
        known = text[:1].isdigit() if pa.types.is_date(type_) else re.search(r"(Z|[+-]\d\d:?\d\d)$", text)
        try:
            moment = TimeType.from_arrow_type(type_).parse(text) if known else None
        except (TimelyError, ValueError):
            moment = None
        if moment is None:
            msg = f"{text!r}"
            raise self._mismatch(msg, "write DATE '2013-01-31', TIMESTAMP '2013-01-31T09:30:00Z' with its zone")
        return pa.scalar(moment, pa.int32() if pa.types.is_date(type_) else pa.int64()).cast(type_)

    def _bool(self, value: _Value) -> _Value:
        if pa.types.is_null(value.type):
            return _Value(pc.scalar(pa.scalar(None, _BOOL)), _BOOL)
        if not pa.types.is_boolean(value.type):
            msg = f"type={value.type} where true or false belongs"
            raise self._mismatch(msg, "compare it with something")
        return value

    def _computed(self, left: _Value, sign: str, right: _Value) -> _Value:
        types = [left.type, right.type]
        if not all(pa.types.is_integer(type_) or pa.types.is_floating(type_) for type_ in types) and not (
            all(map(_is_number, types)) and any(map(pa.types.is_floating, types))
        ):
            found = f"{sign!r} of types {[str(type_) for type_ in types]}"
            raise self._mismatch(found, "compute with integers, or with floats")
        # As Spark has it: the wider of two of a kind; an integer or a decimal beside a float makes doubles.
        wide = max(types, key=lambda type_: type_.bit_width)
        if len({pa.types.is_floating(type_) for type_ in types}) == 2:
            wide = pa.float64()
        left, right = _cast(left, wide), _cast(right, wide)
        functions: dict[str, Callable[..., pc.Expression]] = {
            "+": pc.add_checked,
            "-": pc.subtract_checked,
            "*": pc.multiply_checked,
        }
        return _Value(functions[sign](left.expression, right.expression), wide)

    def _compared(self, left: _Value, sign: str, right: _Value) -> _Value:
        if pa.types.is_null(left.type) or pa.types.is_null(right.type):
            return _Value(pc.scalar(pa.scalar(None, _BOOL)), _BOOL)
        left, right = self._common(left, right)
        a, b = left.expression, right.expression
        plain = {
            "=": lambda: a == b,
            "<>": lambda: a != b,
            "<": lambda: a < b,
            "<=": lambda: a <= b,
            ">": lambda: a > b,
            ">=": lambda: a >= b,
        }
        if not pa.types.is_floating(left.type):
            return _Value(plain[sign](), _BOOL)
        # NaN is equal to itself and greater than all other numbers; a literal is none.
        never = pc.scalar(False)  # noqa: FBT003 - as Arrow has it
        a_nan = never if left.literal is not None else pc.is_nan(a)
        b_nan = never if right.literal is not None else pc.is_nan(b)
        with_nan = {
            "=": lambda: (a == b) | (a_nan & b_nan),
            "<>": lambda: ~((a == b) | (a_nan & b_nan)),
            "<": lambda: (a < b) | (b_nan & ~a_nan),
            "<=": lambda: (a <= b) | b_nan,
            ">": lambda: (a > b) | (a_nan & ~b_nan),
            ">=": lambda: (a >= b) | a_nan,
        }
        known = pc.is_valid(a) & pc.is_valid(b)
        return _Value(pc.if_else(known, with_nan[sign](), pa.scalar(None, _BOOL)), _BOOL)

    def _common(self, left: _Value, right: _Value) -> tuple[_Value, _Value]:
        """Bring two sides of a comparison to one type, without loss."""
        types = (left.type, right.type)
        if all(map(_is_number, types)):
            if any(map(pa.types.is_floating, types)):
                return _cast(left, pa.float64()), _cast(right, pa.float64())
            if all(map(pa.types.is_integer, types)):
                return _cast(left, pa.int64()), _cast(right, pa.int64())
            scale = max(type_.scale for type_ in types if pa.types.is_decimal(type_))
            whole = max(type_.precision - type_.scale if pa.types.is_decimal(type_) else 19 for type_ in types)
            if whole + scale <= 38 and scale >= 0:
                wide = pa.decimal128(whole + scale, scale)
                return _cast(left, wide), _cast(right, wide)
        for one, other in ((left, right), (right, left)):
            is_moment = pa.types.is_date(one.type) or pa.types.is_timestamp(one.type)
            if is_moment and isinstance(other.literal, str):
                moment = self._moment(other.literal, one.type)
                return (one, moment) if one is left else (moment, one)
        if left.type != right.type or not _has_order(left.type):
            found = f"a comparison of types {left.type} and {right.type}"
            raise self._mismatch(found, "compare numbers with numbers, and other things with their like")
        return left, right


def _bigint(value: int) -> exp.Expr:
    """Return a number as Spark reads all of them: the least one has no literal of its own."""
    from sqlglot import exp

    return exp.cast(exp.Literal.string(str(value)), "BIGINT")


def _paired(parts: list[pc.Expression], join: Callable[[pc.Expression, pc.Expression], pc.Expression]) -> pc.Expression:
    """Join pairs of neighbours until one is left: a long chain is not nested deeply."""
    while len(parts) > 1:
        parts = [reduce(join, parts[at : at + 2]) for at in range(0, len(parts), 2)]
    return parts[0]


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _has_order(type_: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_date, pa.types.is_timestamp, pa.types.is_boolean)
    return any(test(type_) for test in tests)


def _cast(value: _Value, type_: pa.DataType) -> _Value:
    if value.type == type_:
        return value
    if isinstance(value.literal, int | float | Decimal):
        plain = float(value.literal) if pa.types.is_floating(type_) else value.literal
        plain = Decimal(plain) if pa.types.is_decimal(type_) else plain
        return _Value(pc.scalar(pa.scalar(plain, type_)), type_, value.literal)
    # Large integers are rounded to doubles, as in Spark.
    return _Value(value.expression.cast(type_, safe=not pa.types.is_floating(type_)), type_)
