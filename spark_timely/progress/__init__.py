"""Counts, antichains and frontiers: how far a stream has come."""

from __future__ import annotations
