"""Runs the command line as ``python -m spark_timely``, as the script ``spark-timely`` does (`spark_timely.cli`)."""

from __future__ import annotations

from spark_timely.cli import main

raise SystemExit(main())
