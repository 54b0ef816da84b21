"""Checks of what an operator is given: columns, functions, conditions, and the kind of rows and times.

The modules of this folder call them in `bind`, and `dataflow.remembered` where it makes a state. Each names the
operator, and raises `InvalidUsageError` or `SchemaMismatchError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from spark_timely.dataflow.delays import plus
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError, described, shown
from spark_timely.log.files.format import canonical_type, check_stream_name
from spark_timely.predicate import parse_predicate

if TYPE_CHECKING:
    import datetime as dt

    from spark_timely.dataflow.views import Names, View

__all__ = [
    "check_column",
    "check_events",
    "check_function",
    "check_history",
    "check_integers",
    "check_keep",
    "check_updates",
    "columns_of",
    "condition_of",
    "key_of",
    "length_of",
    "named",
    "seen_of",
    "tried",
    "type_of",
    "types_of",
]


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the types of columns by name, for errors."""
    return {field.name: str(field.type) for field in schema}


def named(columns: str | Sequence[str]) -> Names:
    """Return names of columns of which one may be given alone."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def check_column(name: str, view: View, column: object) -> None:
    """Refuse a column that a view has not."""
    if column not in view.schema.names:
        msg = f"could not add operator {name!r}: found no column {shown(column)}"
        hint = f"use one of the columns {shown(view.schema.names)}"
        if column in view.domain.columns:
            hint += "; the time in the log is none of them: write it into the rows too"
        raise SchemaMismatchError(msg, hint=hint)


def check_events(name: str, *views: View) -> None:
    """Refuse updates of a collection."""
    for view in views:
        if view.updates:
            msg = f"could not add operator {name!r}: found updates of {view.name!r}, which it cannot take back"
            raise InvalidUsageError(
                msg, hint="use it before as_updates(), on events: what it gave cannot be taken back"
            )


def check_updates(name: str, view: View) -> None:
    """Refuse events."""
    if not view.updates:
        msg = f"could not add operator {name!r}: found events of {view.name!r}, no updates of a collection"
        raise InvalidUsageError(msg, hint="make updates of them: as_updates()")


def check_integers(name: str, view: View, column: str) -> None:
    """Refuse a column that is none of integers."""
    check_column(name, view, column)
    if not pa.types.is_signed_integer(view.schema.field(column).type):
        msg = f"could not add operator {name!r}: found column {column!r} of type={view.schema.field(column).type}"
        raise SchemaMismatchError(msg, hint="name a column of integers")


def check_function(name: str, function: object) -> None:
    """Refuse what cannot be called."""
    if not callable(function):
        msg = f"could not add operator {name!r}: found function={shown(function)}"
        raise InvalidUsageError(msg, hint="give a function of Arrow tables")


def check_keep(name: str, keep: str | None) -> None:
    """Refuse a name of what an operator keeps that is no part of a folder's name."""
    if keep is not None:
        try:
            check_stream_name(keep)
        except InvalidUsageError as error:
            msg = f"could not add operator {name!r}: found name={shown(keep)}"
            raise InvalidUsageError(msg, hint=error.hint) from error


def check_history(name: str, view: View) -> None:
    """Refuse times of several coordinates."""
    if view.domain.arity != 1:
        msg = f"could not add operator {name!r}: found times of {view.domain.arity} coordinates"
        raise InvalidUsageError(
            msg,
            hint="use times of one coordinate: with several it would have to answer at times at which nothing came",
        )


def key_of(name: str, view: View, column: str) -> pa.Field:
    """Return the column of a key; refuse floats, lists, maps and structs."""
    check_column(name, view, column)
    found = view.schema.field(column)
    if pa.types.is_floating(found.type) or pa.types.is_nested(found.type):
        msg = f"could not add operator {name!r}: found key {column!r} of type={found.type}"
        raise SchemaMismatchError(
            msg, hint="round or cast the column first: floats have two zeros and many NaN, lists have no order"
        )
    return found


def length_of(name: str, view: View, parameter: str, duration: str | int | dt.timedelta) -> int:
    """Return a duration in units of the times of one coordinate: at least 1."""
    bound = plus(duration).bind(view.domain)
    ((end,),) = bound.front(view.domain.minimum_frontier).elements
    length: int = end - view.domain.minimum[0]
    if length < 1:
        msg = f"could not add operator {name!r}: found {parameter}={shown(duration)}"
        raise InvalidUsageError(msg, hint="give a duration that is greater than 0, or leave it out: for ever")
    return length


def seen_of(view: View, columns: Names | None = None) -> pa.Table:
    """Return no rows, with the columns that functions and expressions see."""
    return view.empty().select(view.seen(columns))


def condition_of(name: str, view: View, condition: object) -> tuple[pc.Expression, Names]:
    """Return a condition as an expression, and the payload columns that it looks at."""
    if isinstance(condition, str):
        types = {field.name: field.type for field in seen_of(view).schema}
        expression = parse_predicate(condition, types, what=f"add operator {name!r}").expression
    elif isinstance(condition, pc.Expression):
        expression = condition
    else:
        msg = f"could not add operator {name!r}: found condition={shown(condition)}"
        raise InvalidUsageError(msg, hint="give SQL text, or an expression such as pyarrow.compute.field('delay') > 15")
    found = type_of(name, view, "condition", expression)
    if found != pa.bool_():
        msg = f"could not add operator {name!r}: found a condition of type={found}"
        raise InvalidUsageError(msg, hint="give a condition that is true or false")
    return expression, _without_which_unbound(view, expression)


def columns_of(name: str, view: View, expression: pc.Expression) -> Names:
    """Return the payload columns that an expression looks at."""
    type_of(name, view, "condition", expression)
    return _without_which_unbound(view, expression)


def _without_which_unbound(view: View, expression: pc.Expression) -> Names:
    empty = seen_of(view)
    return tuple(n for n in view.schema.names if not _binds(empty.drop_columns(n), expression))


def type_of(name: str, view: View, column: str, expression: pc.Expression) -> pa.DataType:
    """Return the type of an expression, as a log keeps it."""
    try:
        return canonical_type(_evaluated(seen_of(view), expression), column)
    except (pa.ArrowException, SchemaMismatchError) as error:
        text = error.message if isinstance(error, TimelyError) else str(error)
        msg = f"could not add operator {name!r}: {' '.join(text.split())}"
        raise SchemaMismatchError(msg, hint=f"use one of the columns {shown(view.schema.names)}") from error


def tried(name: str, call: Callable[[], pa.Table]) -> pa.Schema:
    """Return the columns that a user's function gives when it is called without rows."""
    try:
        made = call()
        return pa.schema([pa.field(f.name, canonical_type(f.type, f.name)) for f in made.schema])
    except Exception as error:
        msg = f"could not add operator {name!r}: called without rows its function gave {described(error)}"
        raise InvalidUsageError(msg, hint="let the function give its columns also for a table without rows") from error


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
