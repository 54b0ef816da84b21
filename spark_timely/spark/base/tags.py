"""Tags of Spark's jobs, by which jobs are found and ended, also those of a client that is gone.

Copies and mirrors (`spark_timely.spark.answers`) tag their jobs, as do compute instances
(`spark_timely.spark.instance.jobs`). A copy's folder names the tag and how to end its jobs by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from spark_timely.spark.base.compat import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["end_tagged", "home_of", "is_pinned", "tagged", "way_to_end"]


def is_pinned() -> bool:
    """Return whether each thread has a thread of the JVM of its own, as by default."""
    return os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"


@contextmanager
def tagged(spark: SparkSession, tag: str, /) -> Iterator[None]:
    """Give the jobs of this thread a tag.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect. Without a thread of its own in the JVM nothing is tagged: the tag would be anybody's.
    tag : str
        Without a comma.
    """
    if is_remote(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
    elif not is_pinned():
        yield
    else:
        context = spark.sparkContext
        context.addJobTag(tag)  # the session's own tags do not reach jobs of `collect`
        try:
            yield
        finally:
            with suppress(Exception):  # it was stopped
                context.removeJobTag(tag)


def end_tagged(spark: SparkSession, tag: str, /) -> None:
    """End the jobs that have a tag: of the application, through Connect of this session. Others are out of reach."""
    with suppress(Exception):  # it is only sooner
        if is_remote(spark):
            spark.interruptTag(tag)
        else:
            spark.sparkContext.cancelJobsWithTag(tag)


def home_of(spark: SparkSession, /) -> dict[str, str]:
    """Return where the jobs of a session are found: `session` through Connect, else `application`.

    What a kind of session does not tell is left out.
    """
    found: dict[str, str] = {}
    with suppress(Exception):  # whatever a kind of session raises where it has no such thing
        if is_remote(spark):
            found["session"] = str(spark.session_id)  # type: ignore[attr-defined]  # of Connect's alone
        else:
            found["application"] = str(spark.sparkContext.applicationId)
    return found


def way_to_end(home: Mapping[str, str], tag: str, /) -> str:
    """Return, for a hint, the call that ends the jobs with a tag, whichever process asks for it.

    Parameters
    ----------
    home : mapping
        As `home_of` gives it.
    tag : str

    Examples
    --------
    >>> way_to_end({"session": "5f"}, "a")
    "SparkSession.builder.remote('sc://HOST:PORT/;session_id=5f').create().interruptTag('a')"
    >>> way_to_end({"application": "local-1"}, "a")
    "spark.sparkContext.cancelJobsWithTag('a') in application 'local-1'"
    """
    if "session" in home:
        remote = f"sc://HOST:PORT/;session_id={home['session']}"
        # By the user of that session, whose name no public interface of Spark gives.
        return f"SparkSession.builder.remote({remote!r}).create().interruptTag({tag!r})"
    where = f" in application {home['application']!r}" if "application" in home else ""
    return f"spark.sparkContext.cancelJobsWithTag({tag!r}){where}"
