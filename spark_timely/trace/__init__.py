"""Arrangements: an index by key of a collection's updates, as sorted runs that are searched and merged."""

from __future__ import annotations
