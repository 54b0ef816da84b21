"""Operators over all history: each keeps what it needs of its input as state, and updates its result from new rows."""

from __future__ import annotations
