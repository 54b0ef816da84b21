"""Admission of rows to a stream: which become messages, which dead letters, and why others are refused.

A dead letter is a row that is kept in the log apart from the messages, with the reason: it was late, too far in
the future, or had no usable time. The sink's tasks (`spark_timely.sink.rows`) and stream writers (`writer`) ask
`judge_rows`; `spark_timely.spark.capture.classify` writes the same rules as SQL.

Invariants
----------
1. Rows are judged by `Policy.judge` alone; what this module adds is the rows themselves.
2. A dead letter holds the whole payload. Where its time columns held no usable time, its reason says what they held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError, shown
from spark_timely.log.files.parquet import letter_table
from spark_timely.protocol.policy import (
    NO_TIME,
    OUT_OF_BOUNDS,
    BadTime,
    FrontierPolicy,
    Judgement,
    LateData,
    Policy,
    bad_time_hint,
    late_error,
)
from spark_timely.time.domain import FoundTimes, plain_value

if TYPE_CHECKING:
    import datetime as dt

    from spark_timely.log.files.format import LogFormat
    from spark_timely.protocol.policy import HeldBy
    from spark_timely.protocol.rules import StreamCounts
    from spark_timely.time.antichain import IntArray
    from spark_timely.time.domain import TimeDomain


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """Hold the verdict about rows, with what their dead letters say.

    Attributes
    ----------
    policy : Policy
    counts : StreamCounts
        What the stream held.
    at : int
        Wall clock of the decision, microseconds since the epoch, UTC.
    rows : pyarrow.Table
        As they came in.
    columns : tuple of str
        Their time columns.
    found : FoundTimes or None
        Their times; None under ``frontier=batch``.
    verdict : Judgement
    """

    policy: Policy
    counts: StreamCounts
    at: int
    rows: pa.Table
    columns: tuple[str, ...]
    found: FoundTimes | None
    verdict: Judgement

    @property
    def n_dead(self) -> int:
        """Number of rows that are set apart."""
        return int(self.verdict.dead.sum())

    @property
    def n_advanced(self) -> int:
        """Number of messages that were moved to the frontier."""
        return int((self.verdict.late & self.verdict.message).sum())

    @property
    def n_skewed(self) -> int:
        """Number of messages that are too far in the future."""
        return int((self.verdict.skewed & self.verdict.message).sum())

    def greatest(self) -> tuple[int, int] | None:
        """Return the greatest time that may move the frontier, and the first row that has it; None without any."""
        moving = np.flatnonzero(self.verdict.moving)
        if not len(moving):
            return None
        row = int(moving[np.argmax(self.verdict.times[moving, 0])])
        return int(self.verdict.times[row, 0]), row

    def messages(self, payload: pa.Table, diffs: IntArray | None) -> tuple[pa.Table, IntArray, IntArray | None]:
        """Return payload, times and diffs of the messages; without a copy where all rows are messages.

        Parameters
        ----------
        payload : pyarrow.Table
            Of all rows, in the log's schema.
        diffs : ndarray of int64, shape (n,), or None
        """
        verdict = self.verdict
        if verdict.plain or not verdict.dead.any():
            return payload, verdict.times, diffs
        keep = np.flatnonzero(verdict.message)
        return payload.take(keep), verdict.times[keep], None if diffs is None else diffs[keep]

    def letters(
        self, form: LogFormat, payload: pa.Table, diffs: IntArray | None, *, stream: str, seq: int
    ) -> tuple[pa.Table, IntArray]:
        """Return the dead letters as a file has them, and their times; none where none are set apart."""
        verdict = self.verdict
        rows = np.flatnonzero(verdict.dead)
        times = verdict.times[rows]
        diffs = None if diffs is None else diffs[rows]
        reasons = self._reasons(rows) if len(rows) else pa.array([], pa.string())
        table = letter_table(form, payload.take(rows), times, stream, seq, diffs, reasons=reasons, at=self.at)
        return table, times

    def _reasons(self, rows: IntArray) -> pa.Array:
        verdict = self.verdict
        late, skewed = self.policy.reasons(self.counts, at=self.at)
        reasons = pa.array(np.where(verdict.late[rows], late, skewed), pa.string())
        bad = verdict.bad[rows]
        if self.found is None or not bad.any():
            return reasons
        held = self.policy.domain.found_text(
            self.rows.select(list(dict.fromkeys(self.columns))).take(rows), self.columns
        )
        why = pa.array(np.where(self.found.null[rows], NO_TIME, OUT_OF_BOUNDS), pa.string())
        return pc.if_else(pa.array(bad), pc.binary_join_element_wise(why, held, ""), reasons)


def policy_of(
    domain: TimeDomain,
    attempt: str,
    *,
    late_data: str = "error",
    bad_time: str = "error",
    skew: int | str | dt.timedelta | None = None,
    lateness: int | str | dt.timedelta | None = None,
) -> Policy:
    """Return the policy of a writer from its arguments.

    Raises
    ------
    InvalidUsageError
        If one of them is none of its words, or no span of the log's times.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> policy_of(TimeDomain(("long",)), "could not write", bad_time="deadLetter", lateness=3).lateness
    3
    """
    kinds = {"late_data": (LateData, late_data), "bad_time": (BadTime, bad_time)}
    for name, (kind, value) in kinds.items():
        if value not in list(kind):
            msg = f"{attempt}: found {name}={shown(value)}"
            raise InvalidUsageError(msg, hint=f"choose among {', '.join(kind)}", context={"argument": name})
    span = domain.types[0].duration
    return Policy(
        domain,
        FrontierPolicy.HOLD if lateness is None else FrontierPolicy.BOUNDED,
        LateData(late_data),
        0 if lateness is None else span(lateness),
        None if skew is None else span(skew),
        BadTime(bad_time),
    )


def judge_rows(
    policy: Policy,
    counts: StreamCounts,
    rows: pa.Table,
    columns: Sequence[str],
    *,
    at: int,
    stream: str,
    held_by: HeldBy,
    first_row: int = 0,
    late_refused: bool = True,
) -> Admission:
    """Judge rows by their times, and refuse them where the policy says so.

    Parameters
    ----------
    policy : Policy
    counts : StreamCounts
        What the stream holds.
    rows : pyarrow.Table
        As they came in.
    columns : sequence of str
        Their time columns; none under ``frontier=batch``.
    at : int
        Wall clock, microseconds since the epoch, UTC.
    stream : str
        Name of the stream, for errors.
    held_by : HeldBy
        Why the stream holds what it holds, for errors.
    first_row : int
        Number of the first row, for errors.
    late_refused : bool
        Whether rows that are refused as late are refused here; else they are messages at their own time, for the
        commit to refuse.

    Raises
    ------
    InvalidUsageError
        If a row has no usable time, and such rows are not set apart.
    LateDataError
        If a row is late or too far in the future under ``lateData=error``.
    """
    names = tuple(columns)
    if policy.frontier is FrontierPolicy.BATCH:
        verdict = policy.judge(np.zeros((rows.num_rows, 1), dtype=np.int64), counts, at=at)
        return Admission(policy, counts, at, rows, names, None, verdict)
    found = policy.domain.read_columns(rows, names)
    verdict = policy.judge(found, counts, at=at)
    if not late_refused:
        verdict = replace(verdict, refused=verdict.refused & ~verdict.late)
    if verdict.refused.any():
        row = int(np.flatnonzero(verdict.refused)[0])
        if verdict.bad[row]:
            _refuse_bad(policy, rows, names, first_row)
        raise late_error(
            policy,
            counts,
            at=at,
            time=tuple(int(x) for x in found.times[row]),
            skewed=bool(verdict.skewed[row]),
            row={name: plain_value(rows.column(name)[row]) for name in rows.column_names},
            stream=stream,
            held_by=held_by,
        )
    return Admission(policy, counts, at, rows, names, found, verdict)


def _refuse_bad(policy: Policy, rows: pa.Table, names: tuple[str, ...], first_row: int) -> None:
    """Raise for the first row without a usable time, as every reader of times does."""
    try:
        policy.domain.from_columns(rows, names, first_row=first_row)
    except InvalidUsageError as error:
        raise InvalidUsageError(
            error.message, hint=bad_time_hint(policy, str(error.hint)), context=error.context
        ) from None
