"""The choice of columns that an export writes, a `Selection`: some of a log's, each as it is or cast to another type.

`exporting` (Timely's format) and `cdcv2.conversion` write what it chooses; `rust` declares its types in Rust. The
user asks for a cast by name, so it may change what a value is: a timestamp becomes an integer of microseconds, or a
text. It changes no value in silence: a value that would be cut, rounded or wrapped is refused.

Invariants
----------
1. A cast keeps nulls: a column that may be null becomes an ``option<…>``.
2. A value that was cast to a number, cast back, is what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.interop.schema import (
    UNIT,
    Decimal,
    Option,
    Record,
    Type,
    arrow_type,
    columns_of,
    parse_type,
    type_of_schema,
    type_text,
)

_INTEGERS = tuple(f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64))


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns that are exported, and the types that some of them are cast to.

    Parameters
    ----------
    columns : tuple of str, optional
        In their order; all unless given.
    casts : mapping of str to Type
        By the name of the column.
    """

    columns: tuple[str, ...] | None = None
    casts: Mapping[str, Type] = field(default_factory=dict)

    @classmethod
    def parse(cls, columns: Sequence[str] | None, casts: Mapping[str, str] | None) -> Selection:
        """Read both; raises `InvalidUsageError`.

        Examples
        --------
        >>> Selection.parse(["a"], {"a": "text"}).casts
        {'a': Scalar(kind='string')}
        """
        kept = None if columns is None else tuple(columns)
        if kept is not None and (not kept or len(set(kept)) < len(kept)):
            msg = f"could not choose columns: found {shown(list(kept))}"
            raise InvalidUsageError(msg, hint="name each column once, and at least one")
        return cls(kept, {name: parse_type(text) for name, text in (casts or {}).items()})

    def record(self, schema: pa.Schema, known: Type | None = None) -> Type:
        """Return the type of the records of a log's columns.

        Parameters
        ----------
        schema : pyarrow.Schema
            The log's payload columns.
        known : Type, optional
            Types that its columns were declared with.

        Raises
        ------
        InvalidUsageError
            If it has no such column.
        SchemaMismatchError
            If a column cannot be cast so, or has no type and is not cast.

        Examples
        --------
        >>> schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
        >>> type_text(Selection.parse(["at"], {"at": "text"}).record(schema))
        '{at: option<string>}'
        """
        names = schema.names if self.columns is None else list(self.columns)
        for name in [*names, *self.casts]:
            if name not in schema.names:
                msg = f"could not export column {shown(name)}: found columns {shown(schema.names)}"
                raise InvalidUsageError(msg, hint="correct the name", context={"column": name})
        for name in self.casts:
            if name not in names:
                msg = f"could not cast column {shown(name)}: found it left out, of columns {shown(names)}"
                raise InvalidUsageError(msg, hint="choose the column too, or cast none that is left out")
        declared = dict(columns_of(known)) if known is not None else {}
        items: list[Type] = []
        for name in names:
            column = schema.field(name)
            if name in self.casts:
                items.append(self._cast(column))
            elif name in declared:
                items.append(declared[name])
            else:
                items.append(columns_of(type_of_schema(pa.schema([column])))[0][1])
        if not names:
            return UNIT
        if names == ["value"] and not (isinstance(items[0], Record) and items[0].kind in ("tuple", "struct")):
            return items[0]
        in_turn = names == [f"f{i}" for i in range(len(names))]
        return Record(tuple(names), tuple(items), "tuple" if in_turn else "struct")

    def _cast(self, column: pa.Field) -> Type:
        type_ = self.casts[column.name]
        inner = type_.item if isinstance(type_, Option) else type_
        if type_text(inner) not in choices(column.type) and not (
            isinstance(inner, Decimal) and "decimal(p, s)" in choices(column.type)
        ):
            raise _uncastable(column.name, column.type, type_)
        return Option(inner) if column.nullable else type_

    def cast(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns cast that are to be.

        Raises
        ------
        SchemaMismatchError
            If a value does not fit.

        Examples
        --------
        >>> Selection.parse(None, {"n": "text"}).cast(pa.table({"n": [1, None]})).to_pylist()
        [{'n': '1'}, {'n': None}]
        """
        for name, type_ in self.casts.items():
            place = rows.schema.get_field_index(name)
            wanted = arrow_type(type_)
            try:
                values = _cast_column(rows.column(place), wanted)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                msg = f"could not cast column {shown(name)} to {type_text(type_)}: found {shown(str(error))}"
                hint = f"cast it to a type that holds all its values: {_listed(rows.column(place).type)}"
                raise SchemaMismatchError(msg, hint=hint, context={"column": name}) from error
            rows = rows.set_column(place, pa.field(name, wanted), values)
        return rows


def choices(type_: pa.DataType) -> list[str]:
    """Return the types that a column can be cast to, as they are written.

    Examples
    --------
    >>> choices(pa.date32())
    ['date_days', 'i32', 'i64', 'string']
    """
    if pa.types.is_date(type_):
        return ["date_days", "i32", "i64", "string"]
    if pa.types.is_timestamp(type_):
        return ["timestamp_ntz_us" if type_.tz is None else "timestamp_us", "i64", "string"]
    if pa.types.is_boolean(type_):
        return ["bool", "u8", "string"]
    if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
        return [*_INTEGERS, "i128", "decimal(p, s)", "f32", "f64", "string"]
    if pa.types.is_floating(type_):
        return ["f32", "f64", "string"]
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return ["string", "bytes"]
    return []


def _listed(type_: pa.DataType) -> str:
    return ", ".join(choices(type_)) or "none"


def _uncastable(name: str, found: pa.DataType, type_: Type) -> SchemaMismatchError:
    msg = f"could not cast column {shown(name)} to {type_text(type_)}: found {found}"
    hint = f"cast it to one of: {_listed(found)}"
    if not choices(found):
        hint = "export it as it is, or leave it out: only columns of single values can be cast"
    return SchemaMismatchError(msg, hint=hint, context={"column": name})


def _cast_column(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Return values as another type; raises what Arrow raises where one does not fit."""
    found = values.type
    if found == wanted:
        return values
    if pa.types.is_string(wanted):
        return _texts(values)
    if pa.types.is_date(found):
        return values.cast(pa.int32()).cast(wanted)
    if pa.types.is_timestamp(found):
        return values.cast(pa.int64()).cast(wanted)
    if pa.types.is_decimal(wanted) and pa.types.is_integer(found):
        values = values.cast(pa.decimal128(20, 0))  # else Arrow wants room for all numbers that there might be
    made = values.cast(wanted)
    if pa.types.is_floating(wanted) or pa.types.is_floating(found):
        same = pc.equal(made.cast(found), values)
        if pa.types.is_floating(found):
            same = pc.or_(same, pc.is_nan(values))
        if (pc.all(same).as_py()) is False:
            msg = f"a value that {wanted} does not hold exactly"
            raise pa.ArrowInvalid(msg)
    return made


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as people write them, dates and timestamps as ISO 8601 does."""
    if not pa.types.is_timestamp(values.type):
        return values.cast(pa.string())
    # As of a clock without a zone: for a zone Arrow asks the system, which need not know any.
    texts = values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.replace_substring(texts, " ", "T")
    if values.type.tz is not None:
        texts = pc.binary_join_element_wise(texts, pa.scalar("Z"), pa.scalar(""))
    return texts
