"""Collections as updates (data, time, diff) in columns."""

from __future__ import annotations
