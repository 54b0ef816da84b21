"""What Spark reports of a failure is raised as the error that it was."""

from __future__ import annotations

import pickle

import pytest
from pyspark.errors import StreamingQueryException

from spark_timely import errors
from spark_timely.spark.base.failure import own_error, query_error

KINDS = sorted(
    (getattr(errors, name) for name in errors.__all__ if name.endswith("Error")), key=lambda kind: kind.__name__
)


def reported(text: str) -> StreamingQueryException:
    """Return Spark's error with a text between frames and a plan."""
    frames = '\n  File "/a/b.py", line 5, in f\n    raise X\n' * 20
    return StreamingQueryException(
        f"[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred\nTraceback (most recent call last):{frames}"
        f"spark_timely.errors.X: {text}\n\n=== Streaming Query ===\nIdentifier: [id = 1]"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hint", [None, "read the log"])
def test_each_error_is_raised_as_it_was(kind: type[errors.TimelyError], hint: str | None) -> None:
    was = kind("could not read log 'a': found since=[2]", hint=hint)
    found = query_error(reported(str(was)))
    assert isinstance(found, kind)
    assert isinstance(found, StreamingQueryException)
    assert str(found) == str(was)
    assert (found.message, found.hint) == (was.message, was.hint)
    assert (found.getCondition(), found.getQueryContext()) == (None, [])
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), str(again)) == (kind, str(was))


def test_the_last_of_several_is_the_one_that_was_raised() -> None:
    cause = errors.LogMissingError("could not read log 'a': found nothing")
    last = errors.OperatorError("could not run operator 'b': found it", hint="look")
    text = f"{cause}\n\nThe above exception was the direct cause of the following exception:\n\nX: {last}"
    assert str(own_error(reported(text))) == str(last)


def test_query_error_others_stays_what_it_is() -> None:
    for text in ("Java heap space", "[TIMELY_NO_SUCH] could not read", "[TIMELY_LOG_MISSING] found nothing"):
        error = reported(text)
        assert query_error(error) is error
