"""Arrangements: an index by key of the updates of a collection, as sorted runs that are looked into and merged."""

from __future__ import annotations
