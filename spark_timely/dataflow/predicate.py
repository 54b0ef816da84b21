"""Conditions as SQL text, for rows in Arrow: what Spark's ``where`` makes of the same text.

A small part of Spark's SQL, and only what means the same here: three-valued logic; NaN equal to itself and greater
than all other numbers; integers that overflow are errors; decimals compared exactly. Whatever else is found is refused
by name: what is taken for something else would drop rows in silence. (No parser that is well kept comes with Arrow.)

Grammar: ``OR`` < ``AND`` < ``NOT`` < comparison, ``IS NULL``, ``IN``, ``BETWEEN``, ``LIKE`` < ``+ -`` < ``*`` < ``-x``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError, shown
from spark_timely.timestamp import TimeType

__all__ = ["parse_predicate"]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!\w)|\.\d+(?:[eE][+-]?\d+)?(?!\w))
    |(?P<name>[A-Za-z_]\w*|`[^`]+`)
    |(?P<text>'[^'\\]*'(?!')|"[^"\\]*"(?!"))
    |(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,|\+|-|\*))""",
    re.VERBOSE,
)
_WORDS: Final = frozenset(
    [
        *("AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "TRUE", "FALSE", "DATE", "TIMESTAMP"),
        *("CASE", "CAST", "EXISTS", "INTERVAL", "ESCAPE"),
    ]
)
_COMPARISONS: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_BOOL: Final = pa.bool_()


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


def parse_predicate(text: str, types: Mapping[str, pa.DataType], /, *, what: str) -> pc.Expression:
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
    >>> condition = parse_predicate("n BETWEEN 1 AND 9 OR k LIKE 'b%' AND n IS NULL", types, what="filter")
    >>> rows.filter(condition)["n"].to_pylist()
    [5, None]
    """
    return _Parser(text, types, what).condition()


class _Parser:
    """One text, read from left to right."""

    def __init__(self, text: str, types: Mapping[str, pa.DataType], what: str) -> None:
        self._text, self._types, self._what = text, types, what
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                msg = f"{text[start : start + 20]!r}"
                raise self._error(msg, start)
            self._tokens.append((match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup)))
            at = match.end()
        self._at = 0

    def condition(self) -> pc.Expression:
        """Read all of the text."""
        value = self._or()
        if self._at < len(self._tokens):
            _, token, place = self._tokens[self._at]
            raise self._error(repr(token), place)
        return self._bool(value).expression

    # Tokens ------------------------------------------------------------------------------------------

    def _word(self) -> str:
        """Return the next token if it is a word of SQL or a sign, in upper case."""
        if self._at >= len(self._tokens):
            return ""
        kind, token, _ = self._tokens[self._at]
        if kind == "sign":
            return token
        return token.upper() if kind == "name" and token.upper() in _WORDS else ""

    def _take(self, *words: str) -> bool:
        """Go past words if they come next."""
        start = self._at
        for word in words:
            if self._word() != word:
                self._at = start
                return False
            self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            found = repr(self._tokens[self._at][1]) if self._at < len(self._tokens) else "the end"
            place = self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)
            msg = f"{found} where {word!r} belongs"
            raise self._error(msg, place)

    def _error(self, found: str, place: int) -> InvalidUsageError:
        msg = f"could not {self._what}: found {found} at place {place} of condition {shown(self._text)}"
        return InvalidUsageError(
            msg,
            hint="conditions here are comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE, +, -, *, columns and "
            "literals; give anything else as an expression of pyarrow.compute",
        )

    def _mismatch(self, found: str, hint: str) -> SchemaMismatchError:
        return SchemaMismatchError(f"could not {self._what}: found {found} in condition {shown(self._text)}", hint=hint)

    # Grammar -----------------------------------------------------------------------------------------

    def _or(self) -> _Value:
        value = self._and()
        while self._take("OR"):
            value = _Value(self._bool(value).expression | self._bool(self._and()).expression, _BOOL)
        return value

    def _and(self) -> _Value:
        value = self._not()
        while self._take("AND"):
            value = _Value(self._bool(value).expression & self._bool(self._not()).expression, _BOOL)
        return value

    def _not(self) -> _Value:
        if self._take("NOT"):
            return _Value(~self._bool(self._not()).expression, _BOOL)
        return self._predicate()

    def _predicate(self) -> _Value:
        left = self._sum()
        sign = _COMPARISONS.get(self._word())
        if sign is not None:
            self._at += 1
            return self._compared(left, sign, self._sum())
        if self._take("IS", "NOT", "NULL"):
            return _Value(pc.is_valid(left.expression), _BOOL)
        if self._take("IS", "NULL"):
            return _Value(pc.is_null(left.expression), _BOOL)
        negated = self._take("NOT")
        if self._take("IN"):
            found = self._in(left)
        elif self._take("BETWEEN"):
            low = self._sum()
            self._expect("AND")
            high = self._sum()
            found = self._compared(left, ">=", low).expression & self._compared(left, "<=", high).expression
        elif self._take("LIKE"):
            found = self._like(left)
        elif negated:
            self._expect("IN")
        else:
            return left
        return _Value(~found if negated else found, _BOOL)

    def _in(self, left: _Value) -> pc.Expression:
        self._expect("(")
        found = self._compared(left, "=", self._sum()).expression
        while self._take(","):
            found = found | self._compared(left, "=", self._sum()).expression
        self._expect(")")
        return found

    def _like(self, left: _Value) -> pc.Expression:
        pattern = self._sum()
        if not pa.types.is_string(left.type) or not isinstance(pattern.literal, str):
            found = f"LIKE of type={left.type} and {pattern.expression}"
            raise self._mismatch(found, "LIKE takes a column of texts and a text")
        return pc.match_like(left.expression, pattern.literal)

    def _sum(self) -> _Value:
        value = self._product()
        while self._word() in ("+", "-"):
            sign = self._word()
            self._at += 1
            value = self._computed(value, sign, self._product())
        return value

    def _product(self) -> _Value:
        value = self._signed()
        while self._take("*"):
            value = self._computed(value, "*", self._signed())
        return value

    def _signed(self) -> _Value:
        if not self._take("-"):
            return self._primary()
        value = self._signed()
        if isinstance(value.literal, int | float | Decimal) and not isinstance(value.literal, bool):
            return self._literal(-value.literal)
        if pa.types.is_integer(value.type) or pa.types.is_floating(value.type):
            return _Value(pc.negate_checked(value.expression), value.type)
        msg = f"minus of type={value.type}"
        raise self._mismatch(msg, "negate numbers")

    def _primary(self) -> _Value:
        if self._take("("):
            value = self._or()
            self._expect(")")
            return value
        if self._at >= len(self._tokens):
            msg = "the end"
            raise self._error(msg, len(self._text))
        kind, token, place = self._tokens[self._at]
        word = self._word()
        self._at += 1
        if kind == "number":
            return self._literal(int(token) if token.isdigit() else _number(token))
        if kind == "text":
            return self._literal(token[1:-1])
        if word in ("TRUE", "FALSE"):
            return self._literal(word == "TRUE")
        if word == "NULL":
            return _Value(pc.scalar(pa.scalar(None)), pa.null())
        if word in ("DATE", "TIMESTAMP") and self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            text = self._tokens[self._at][1][1:-1]
            self._at += 1
            return self._moment(text, pa.date32() if word == "DATE" else pa.timestamp("us", "UTC"))
        if kind == "name" and word in ("", "DATE", "TIMESTAMP") and self._word() != "(":
            return self._column(token.strip("`"))
        raise self._error(repr(token), place)

    # Meaning -----------------------------------------------------------------------------------------

    def _column(self, name: str) -> _Value:
        found = [name] if name in self._types else [each for each in self._types if each.lower() == name.lower()]
        if len(found) != 1:
            msg = f"no column {name!r}"
            raise self._mismatch(msg, f"the columns are {shown(list(self._types))}")
        type_ = self._types[found[0]]
        if pa.types.is_large_string(type_):
            type_ = pa.string()
        return _Value(pc.field(found[0]), type_)

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
        zoned = pa.types.is_date(type_) or re.search(r"(Z|[+-]\d\d:?\d\d)$", text)
        try:
            moment = TimeType.from_arrow_type(type_).parse(text) if zoned else None
        except (TimelyError, ValueError):
            moment = None
        if moment is None:
            msg = f"{text!r}"
            raise self._mismatch(msg, "write DATE '2013-01-31', TIMESTAMP '2013-01-31T09:30:00Z' with its zone")
        scalar = pa.scalar(moment, pa.int32() if pa.types.is_date(type_) else pa.int64()).cast(type_)
        return _Value(pc.scalar(scalar), type_)

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
                told = self._moment(other.literal, one.type)
                return (one, told) if one is left else (told, one)
        if left.type != right.type or not _has_order(left.type):
            found = f"a comparison of types {left.type} and {right.type}"
            raise self._mismatch(found, "compare numbers with numbers, and other things with their like")
        return left, right


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _has_order(type_: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_date, pa.types.is_timestamp, pa.types.is_boolean)
    return any(test(type_) for test in tests)


def _number(text: str) -> float | Decimal:
    return float(text) if "e" in text.lower() else Decimal(text)


def _cast(value: _Value, type_: pa.DataType) -> _Value:
    if value.type == type_:
        return value
    if isinstance(value.literal, int | float | Decimal):
        plain = float(value.literal) if pa.types.is_floating(type_) else value.literal
        plain = Decimal(plain) if pa.types.is_decimal(type_) else plain
        return _Value(pc.scalar(pa.scalar(plain, type_)), type_, value.literal)
    # Large integers are rounded to doubles, as in Spark.
    return _Value(value.expression.cast(type_, safe=not pa.types.is_floating(type_)), type_)
