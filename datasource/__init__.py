"""The replay source: `readStream.format("timely")` and `read.format("timely")`."""

from __future__ import annotations
