"""The options of the sink with their types, as Python callers write them: for editors and type checkers.

Names and kinds are those of the table in `spark_timely.conf.options`; a test compares the two. Spark's own way of
writing a name (``lateData``) is read as well, and is known at run time only.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict

NamesLike: TypeAlias = str | list[str] | tuple[str, ...]
"""One name, several separated by commas, or a sequence of names."""

DurationLike: TypeAlias = str | timedelta
"""A length of time with its unit: ``"10 minutes"``, ``"PT10M"`` or a timedelta."""

DistanceLike: TypeAlias = int | str | timedelta
"""A distance between two times of a log: a length of time, or a number where times are integers."""

SizeLike: TypeAlias = int | str
"""A number of bytes, or text with a unit: ``"128mb"``."""


class SinkGiven(TypedDict, total=False):
    """Options of the sink for `spark_timely.start` and `spark_timely.capture`, beside the parameters that these name.

    What each of them means stands in the table: `SinkOptions`.
    """

    stream: str
    time_column: NamesLike | None
    frontier: Literal["batch", "bounded", "source", "events", "hold"] | None
    lateness: DistanceLike
    max_future_skew: DistanceLike | None
    late_data: Literal["error", "deadLetter", "advance"]
    streams: int
    diff_column: str | None
    merge_schema: bool
    takeover: bool
    begin_at: int | None
    target_file_size: SizeLike
    dialect: Literal["timely", "cdcv2"]
    single_writer: bool
    flush: bool
    compression: Literal["zstd", "snappy", "gzip", "none"]
    auto_compact: Literal["inline", "off"]
