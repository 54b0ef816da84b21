"""Observed metrics of a job that writes: fetches what Spark counted in passing, with a time limit.

Captures in foreachBatch (`spark_timely.spark.capture.staging`) and copies (`spark_timely.spark.answers.copy_to`) count
their rows so, without a second job.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from spark_timely.masking import masked_logger
from spark_timely.threads import aside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Observation

__all__ = ["WAIT_S", "observed"]

_log = masked_logger("spark_timely.sink")

WAIT_S = 60.0
"""How long an event of a job that has ended is waited for."""


def observed(seen: Observation, /) -> Mapping[str, Any]:
    """Return what Spark has computed within a job that has ended; nothing where it does not say.

    Spark drops events when its listeners are too slow. An observation without its event waits for ever.

    Parameters
    ----------
    seen : pyspark.sql.Observation
    """
    found: Future[Mapping[str, Any]] = Future()

    def wait() -> None:
        try:
            found.set_result(seen.get)
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            found.set_exception(error)

    aside("observe", wait)
    try:
        return found.result(timeout=WAIT_S)
    except TimeoutError:
        _log.warning("found no counts of a write job after %s s: Spark may have dropped the event", WAIT_S)
        return {}
