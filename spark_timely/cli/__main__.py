"""Run the command line as ``python -m spark_timely.cli``."""

from __future__ import annotations

from spark_timely.cli.command import main

raise SystemExit(main())
