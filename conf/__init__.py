"""The options of the sink and the source: one table, the parsers of its values, and its types for editors.

`options` has the table, by which source, sink, captures and replays read what users give. `kinds` parses one value, and
checks arguments of functions in all other folders. `given` has the types that editors and type checkers see.
"""

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
