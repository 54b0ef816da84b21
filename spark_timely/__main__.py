"""Run the command line as ``python -m spark_timely``."""

from __future__ import annotations

from spark_timely.cli import main

raise SystemExit(main())
