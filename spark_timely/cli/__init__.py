"""The command line ``spark-timely``: look at a log, check, advance, close, compact it, exchange captures. No Spark.

Examples
--------
>>> from spark_timely.cli import main
>>> main(["--version"])
spark-timely 0.1.0
0
"""

from __future__ import annotations

from spark_timely.cli.command import main

__all__ = ["main"]
