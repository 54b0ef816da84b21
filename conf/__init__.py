"""The options of the sink and the source, in one table."""

from __future__ import annotations

from spark_timely.conf.given import SinkGiven, SourceGiven
from spark_timely.conf.kinds import Option, parse_bytes
from spark_timely.conf.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Options,
    OptionTable,
    SinkOptions,
    SourceOptions,
    parse_options,
)

__all__ = [
    "SINK_OPTIONS",
    "SOURCE_OPTIONS",
    "Option",
    "OptionTable",
    "Options",
    "SinkGiven",
    "SinkOptions",
    "SourceGiven",
    "SourceOptions",
    "parse_bytes",
    "parse_options",
]
