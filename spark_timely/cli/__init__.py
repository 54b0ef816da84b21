"""The command line `spark-timely`."""

from __future__ import annotations
