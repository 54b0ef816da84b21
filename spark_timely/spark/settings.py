"""Settings of a Spark session, changed for a moment.

Invariants
----------
1. However many callers change a session's settings at once, each finds them changed until it is done,
   and after the last one they are what they were before the first.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["changed_settings"]

_LOCK = threading.Lock()


@contextmanager
def changed_settings(spark: SparkSession, wanted: Mapping[str, str], /, *, purpose: str) -> Iterator[None]:
    """Change settings of a session for a moment.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    wanted : mapping
        Names and values; the same ones at every call with this purpose.
    purpose : str
        Names the group of settings.

    Notes
    -----
    Who uses the settings and what they were before is written into the session itself: the objects of
    Python that stand for one session are many. Cost: three calls of the session per setting.

    Examples
    --------
    >>> with changed_settings(spark, {"spark.sql.shuffle.partitions": "1"}, purpose="one"):  # doctest: +SKIP
    ...     df.write.parquet(path)
    """
    key = f"spark.timely.settings.{purpose}"
    with _LOCK:
        _enter(spark, wanted, key)
    try:
        yield
    finally:
        with _LOCK:
            _leave(spark, key)


def _enter(spark: SparkSession, wanted: Mapping[str, str], key: str) -> None:
    text = spark.conf.get(key, None)
    if text is not None:
        state = json.loads(text)
    else:
        state = {"users": 0, "before": {name: spark.conf.get(name, None) for name in wanted}}
        try:
            for name, value in wanted.items():  # as many turns as settings
                spark.conf.set(name, value)
        except BaseException:
            _restore(spark, state["before"])
            raise
    state["users"] += 1
    spark.conf.set(key, json.dumps(state))


def _leave(spark: SparkSession, key: str) -> None:
    state = json.loads(str(spark.conf.get(key)))
    state["users"] -= 1
    if state["users"]:
        spark.conf.set(key, json.dumps(state))
        return
    spark.conf.unset(key)
    _restore(spark, state["before"])


def _restore(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    for name, old in before.items():  # as many turns as settings
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)
