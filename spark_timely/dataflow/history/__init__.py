"""Operators over all history: what each keeps of its input, and what it makes of new rows and of what it keeps."""

from __future__ import annotations
