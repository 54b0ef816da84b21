"""What all operators share when they are written down: names, checks of columns, types of expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError, described, shown
from spark_timely.log.files.format import canonical_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.dataflow.scope import Scope
    from spark_timely.dataflow.view import View

__all__ = ["Building", "types_of"]


class Building:
    """A stream to which operators can be added.

    Parameters
    ----------
    scope : Scope
        The dataflow.
    view : View
        What it is.
    """

    def __init__(self, scope: Scope, view: View) -> None:
        self._scope = scope
        self.view = view

    @property
    def schema(self) -> pa.Schema:
        """Columns of the payload."""
        return self.view.schema

    def __repr__(self) -> str:
        """Return the operator's name and the columns."""
        return f"Stream({self.view.name!r}, {shown(self.schema.names)})"

    def _made(self, view: View) -> Self:
        for source in view.inputs:
            if source.later:
                msg = (
                    f"could not add operator {view.name!r}: found its input {source.name!r} to give rows at later times"
                )
                raise InvalidUsageError(
                    msg, hint="only a log can keep rows until their time: capture the stream, and replay the log"
                )
        names = view.schema.names
        doubled = [name for name in names if names.count(name) > 1 or name in view.domain.columns]
        if self._scope.evaluation == "sql" and not doubled:  # Spark tells no names apart by case
            lowered = [name.lower() for name in names]
            doubled = [name for name in names if lowered.count(name.lower()) > 1]
        if doubled:
            msg = f"could not add operator {view.name!r}: found columns {shown(names)} beside {view.domain.columns!r}"
            raise SchemaMismatchError(msg, hint="give each column a name of its own", context={"column": doubled[0]})
        return type(self)(self._scope, view)

    def _check_stream(self, name: str, other: object) -> None:
        if not isinstance(other, Building) or other._scope is not self._scope:
            msg = f"could not add operator {name!r}: found {shown(other)}"
            raise InvalidUsageError(msg, hint="give streams of the same dataflow")

    def _check_column(self, name: str, column: object) -> None:
        if column not in self.schema.names:
            msg = f"could not add operator {name!r}: found no column {shown(column)}"
            raise SchemaMismatchError(msg, hint=f"the columns are {shown(self.schema.names)}")

    def _check_function(self, name: str, function: object) -> None:
        if not callable(function):
            msg = f"could not add operator {name!r}: found function={shown(function)}"
            raise InvalidUsageError(msg, hint="give a function of Arrow tables")

    def _given(self, name: str, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return the columns that a function gets: all unless said."""
        given = tuple(self.schema.names if columns is None else columns)
        for column in given:
            self._check_column(name, column)
        return given

    def _key(self, name: str, column: str) -> pa.Field:
        self._check_column(name, column)
        found = self.schema.field(column)
        if pa.types.is_floating(found.type) or pa.types.is_nested(found.type):
            msg = f"could not add operator {name!r}: found key {column!r} of type={found.type}"
            raise SchemaMismatchError(
                msg, hint="floats have two zeros and many NaN, lists have no order: round or cast the column first"
            )
        return found

    def _columns_of(self, name: str, expression: pc.Expression, wanted: pa.DataType | None) -> tuple[str, ...]:
        """Return the payload columns that an expression looks at: those without which it cannot be bound."""
        found = self._type_of(name, "condition", expression)
        if wanted is not None and found != wanted:
            msg = f"could not add operator {name!r}: found a condition of type={found}"
            raise InvalidUsageError(msg, hint="give a condition that is true or false")
        empty = self.view.empty()
        return tuple(n for n in self.schema.names if not _binds(empty.drop_columns(n), expression))

    def _type_of(self, name: str, column: str, expression: pc.Expression) -> pa.DataType:
        try:
            return canonical_type(_evaluated(self.view.empty(), expression), column)
        except (pa.ArrowException, SchemaMismatchError) as error:
            text = error.message if isinstance(error, TimelyError) else str(error)
            msg = f"could not add operator {name!r}: {' '.join(text.split())}"
            raise SchemaMismatchError(msg, hint=f"the columns are {shown(self.schema.names)}") from error

    def _tried(self, name: str, call: Callable[[], pa.Table]) -> pa.Schema:
        """Return the columns that a user's function gives when it is called without rows."""
        try:
            made = call()
            return pa.schema([pa.field(f.name, canonical_type(f.type, f.name)) for f in made.schema])
        except Exception as error:
            text = described(error)
            msg = f"could not add operator {name!r}: called without rows its function gave {text}"
            raise InvalidUsageError(
                msg, hint="let the function give its columns also for a table without rows"
            ) from error


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the types of columns by name, for errors."""
    return {field.name: str(field.type) for field in schema}


def _binds(empty: pa.Table, expression: pc.Expression) -> bool:
    try:
        _evaluated(empty, expression)
    except pa.ArrowException:
        return False
    return True


def _evaluated(empty: pa.Table, expression: pc.Expression) -> pa.DataType:
    """Return the type of an expression over a table's columns."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(empty))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["x"]), [source])
    return project.to_table(use_threads=False).schema.field("x").type
