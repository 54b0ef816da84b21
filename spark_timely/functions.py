"""Functions for users: aggregates, shifts of times, and the changes that the body of a task gives.

It only gives shorter names to what other modules have: the aggregates are `dataflow.aggregates`, the shifts
`dataflow.delays`, the changes `spark.tasks`.

Import them as a module, so that Python's own `min`, `max` and `sum` stay what they are::

    from spark_timely import functions as tf

    late.delay(tf.windows("1 day")).aggregate(by="origin", n=tf.count(), worst=tf.max("dep_delay"))

Examples
--------
>>> from spark_timely import functions as tf
>>> tf.max("dep_delay").column
'dep_delay'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.lazy import lazy_names

if TYPE_CHECKING:
    from spark_timely.dataflow.aggregates import avg_of as avg
    from spark_timely.dataflow.aggregates import count
    from spark_timely.dataflow.aggregates import max_of as max
    from spark_timely.dataflow.aggregates import min_of as min
    from spark_timely.dataflow.aggregates import sum_of as sum
    from spark_timely.dataflow.delays import ceil_to, plus, windows
    from spark_timely.spark.tasks.bodies import Changes
    from spark_timely.spark.tasks.continual import deletes, newest

__all__ = ["Changes", "avg", "ceil_to", "count", "deletes", "max", "min", "newest", "plus", "sum", "windows"]

_EXPORTS = {
    "Changes": "spark_timely.spark.tasks.bodies",
    "avg": "spark_timely.dataflow.aggregates:avg_of",
    "ceil_to": "spark_timely.dataflow.delays",
    "count": "spark_timely.dataflow.aggregates",
    "deletes": "spark_timely.spark.tasks.continual",
    "max": "spark_timely.dataflow.aggregates:max_of",
    "min": "spark_timely.dataflow.aggregates:min_of",
    "newest": "spark_timely.spark.tasks.continual",
    "plus": "spark_timely.dataflow.delays",
    "sum": "spark_timely.dataflow.aggregates:sum_of",
    "windows": "spark_timely.dataflow.delays",
}

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
