"""Errors of this library, found again in the failures that Spark reports.

Handles of queries (`spark_timely.start`, dataflows) raise by it the error that users can catch, and `mirror` reads by
it why a job failed. Spark puts the traceback of a Python process into its own error: frames before the text, the
query's plan behind it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from pyspark.errors import PySparkException, StreamingQueryException

from spark_timely.errors import TimelyError

__all__ = ["own_error", "query_error"]

_TEXT: Final = re.compile(r"\[(TIMELY_\w+)\] (could not .*?)(?: — hint: ([^\n]*?))?(?= SQLSTATE|\n|$)")


def own_error(error: BaseException, /) -> TimelyError | None:
    """Return the error of this library that another one reports, None where it reports none.

    Parameters
    ----------
    error : BaseException
        Of Spark's.

    Returns
    -------
    TimelyError or None
        With message and hint; its values stayed where it was raised. Of several the last, which has the others as
        its cause.

    Examples
    --------
    >>> found = own_error(RuntimeError("frames [TIMELY_LOG_MISSING] could not open log 'a' — hint: look SQLSTATE: X"))
    >>> type(found).__name__, found.message, found.hint
    ('LogMissingError', "could not open log 'a'", 'look')
    """
    text = str(error)
    found = list(_TEXT.finditer(text))
    if not found:
        return None
    # At the beginning of a line is a note of the error before it: what else failed.
    raised = [each for each in found if each.start() and text[each.start() - 1] != "\n"]
    condition, message, hint = (raised or found)[-1].groups()
    kind = next((kind for kind in _kinds(TimelyError) if kind.condition == condition), None)
    return None if kind is None else kind(message, hint=hint or None)


def _kinds(kind: type[TimelyError]) -> Iterator[type[TimelyError]]:
    yield kind
    for each in kind.__subclasses__():  # as many as there are errors
        yield from _kinds(each)


def query_error(error: StreamingQueryException, /) -> Exception:
    """Return how a query's failure is raised: as this library's error where it is one, and as Spark's at once.

    Parameters
    ----------
    error : pyspark.errors.StreamingQueryException
        What it has beside the text stays in ``query.exception()``.

    Returns
    -------
    Exception
        One that both ``except SinceViolationError`` and ``except StreamingQueryException`` take, or `error`.
    """
    own = own_error(error)
    if own is None:
        return error
    made: TimelyError = _both(cast("Any", type(own)))(own.message, hint=own.hint, context=own.context)
    return made


@functools.cache
def _both(kind: Any) -> Any:  # noqa: ANN401 - a class of errors
    def begin(self: Any, message: str, **values: Any) -> None:  # noqa: ANN401 - as the class has it
        PySparkException.__init__(self, message=message)
        kind.__init__(self, message, **values)

    def plain(self: Any) -> Any:  # noqa: ANN401 - as pickle has it
        return kind(self.message, hint=self.hint, context=self.context).__reduce__()

    names = {"__init__": begin, "__reduce__": plain, "__doc__": kind.__doc__, "__module__": kind.__module__}
    made: Any = type(kind.__name__, (kind, StreamingQueryException), names)
    made.condition = kind.condition
    return made
