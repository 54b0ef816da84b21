"""A check for tests of continual tasks: a body gives the same one time after another and many times at once.

A user calls `assert_same_together` for a task whose body is evaluated at many times in one step, which the library
concludes from its text and does not prove. It needs a session of Spark, unlike the rest of the kit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.spark.tasks.continual import ContinualTask

__all__ = ["assert_same_together"]


def assert_same_together(task: ContinualTask, spark: SparkSession, /, *, most: int = 50) -> None:
    """Assert that a task's body gives at many times together what it gives at each of them alone.

    Parameters
    ----------
    task : ContinualTask
        It need not have been started; nothing is written.
    spark : pyspark.sql.SparkSession
    most : int
        How many times at most: those that wait to be written, or the last ones that were.

    Raises
    ------
    AssertionError
        If they differ; it names the first time at which they do.
    InvalidUsageError
        As `ContinualTask.compare_together`.

    Examples
    --------
    ::

        task = ContinualTask("enrich", inputs={"orders": orders}, references={"rates": rates}, body=body, output=out)
        assert_same_together(task, spark)
    """
    found = task.compare_together(spark, most=most)
    if found is not None:
        msg = (
            f"the body of task {task.name!r} gives other rows at many times together, first at {found.time}:"
            f" {found.surplus} together only, {found.missing} alone only"
        )
        raise AssertionError(msg)
