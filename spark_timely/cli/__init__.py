"""The command line ``spark-timely``: inspect, check, advance, compact and query logs; import and export captures.

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
