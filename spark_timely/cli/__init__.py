"""The command line ``spark-timely``: inspect, check, advance, compact and query logs; import and export captures.

`command` reads the words and runs one verb. `verb_table` lists the verbs; `parser` makes the options and the help of
it. A verb's function is in `log_verbs`, or in a module of its subject: `answers`, `forgetting`, `instance`, `interop`,
`quick`, `stats`. They read what they need with `arguments`, and print with `output` and `rows`.

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
