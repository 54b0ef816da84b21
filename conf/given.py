"""Types of the options of sink and source, for editors and type checkers.

`spark_timely.capture`, `start` and `replay` have them in their signatures. What a user gives may be text or a value;
parsed, the options are a `SinkOptions` or `SourceOptions` of `spark_timely.conf.options`. Names and kinds are those of
the table there; a test compares the two. Spark's own way of writing a name (``lateData``) is read as well, and is known
at run time only.
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
    bad_time: Literal["error", "deadLetter"]
    streams: int
    diff_column: str | None
    merge_schema: bool
    missing_columns: NamesLike | None
    takeover: bool
    begin_at: int | None
    target_file_size: SizeLike
    dialect: Literal["timely", "cdcv2"]
    single_writer: bool
    flush: bool
    compression: Literal["zstd", "snappy", "gzip", "none"]
    content_digest: Literal["auto", "on", "off"]
    auto_compact: Literal["inline", "off"]
    auto_vacuum: Literal["inline", "off"]
    key_columns: NamesLike | None
    keep: DistanceLike | None
    keep_committed: DurationLike
    credential: str | None


FrontierLike: TypeAlias = int | str | list[object] | tuple[object, ...]
"""A time, a word that the option knows, or the times of an antichain."""

MomentLike: TypeAlias = int | str
"""A commit number or a moment of the wall clock, or a word that the option knows."""


class SourceGiven(TypedDict, total=False):
    """Options of the source for `spark_timely.replay`, beside the parameters that it names.

    What each of them means stands in the table: `SourceOptions`.
    """

    delivery: Literal["complete", "arrival"]
    content: Literal["messages", "events", "splits", "dead", "clock"]
    workers: int | None
    split_by: Literal["bytes", "time"]
    as_of: FrontierLike | None
    snapshot: bool
    starting_frontier: FrontierLike | None
    starting_version: MomentLike | None
    starting_timestamp: MomentLike | None
    up_to: FrontierLike | None
    ending_version: MomentLike | None
    ending_timestamp: MomentLike | None
    cut: str | None
    max_times_per_trigger: int | None
    max_files_per_trigger: int | None
    max_bytes_per_trigger: SizeLike | None
    max_rows_per_trigger: int | None
    align_to: DistanceLike | None
    poll_interval: DurationLike
    include_metadata: bool
    include_time: bool
    columns: NamesLike | None
    where: str | None
    stream_filter: NamesLike | None
    fail_on_data_loss: bool
    accept_change: str | None
    consumer_id: str | None
    consumer_expiry: DurationLike
    credential: str | None
