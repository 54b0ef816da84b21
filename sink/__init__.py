"""The capture sink: `writeStream.format("timely")`."""

from __future__ import annotations
