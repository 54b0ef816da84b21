"""The capture log: its protocol, a reference implementation in memory, and the Delta table."""

from __future__ import annotations
