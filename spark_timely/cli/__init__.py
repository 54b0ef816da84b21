"""The command line ``spark-timely``: look at a log, check, advance, compact, ask it, exchange captures.

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
