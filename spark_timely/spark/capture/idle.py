"""The idle watch: advances the stream of a query without input, so that what it captured becomes complete.

`start` begins one beside its query where ``idleTimeout`` is given. Under ``frontier=bounded`` the frontier stays behind
the greatest time seen until later rows come. If none come, the last rows stay open for as long as the source is silent.
`IdleWatch` looks at the query's reports. When the query has been idle for long enough, the watch gives up the lateness:
the stream moves to just after the greatest time seen, by a commit of its own whose reason says so. A replay repeats
that decision instead of the clock.

Idle means that a trigger looked for input and found none, at least `idleTimeout` after the stream's last
commit. Such a trigger is evidence that the input was used up at that moment. So none of these is taken for silence of
the source while it has rows that were not captured: a long micro-batch, a long pause between triggers, a time when the
query did not run at all. Nothing is remembered from run to run: the log knows when its last commit was made.

Invariants
----------
1. A row of a micro-batch that was planned before the advance is never late by it: the advance is made while
   no micro-batch is under way, behind a gate that keeps the next one from being planned. Where the gate
   fails, one of the two commits is refused, since both say by which state of the stream they decided.
2. The stream never moves past a time that is later than all it has seen, skewed rows left out: a source
   that resumes with later times loses nothing, however far other streams are.
3. Only the stream's owner advances it here; a query that has taken it over is left alone.
4. It looks as long as the query lives and owns the stream: looks that fail are tried again after growing pauses.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_timely.errors import ClosedError, InvalidOptionError, OwnershipError, RolledBackError, UpperMismatchError
from spark_timely.log.machine.state import CommitRequest
from spark_timely.log.writer import downgrade_to
from spark_timely.masking import masked_logger
from spark_timely.sink.plan import check_unbroken, find_log
from spark_timely.spark.base.checkpoint import checkpoint_state, gate
from spark_timely.threads import aside
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import Duration, parse_moment
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_timely.conf.options import SinkOptions
    from spark_timely.log import Log
    from spark_timely.log.machine.state import StreamState


_log = masked_logger("spark_timely.spark")

_LOOK_S = (0.05, 5.0)
# Between looks that fail, at most.
_FAILING_S = 60.0


def check_idle_options(options: SinkOptions, /) -> float:
    """Return the timeout in seconds, or refuse options that it does not go with.

    Raises
    ------
    InvalidOptionError
        If the frontier is not ``bounded``, `lateData` is not chosen, or the timeout is no time at all.

    Examples
    --------
    >>> from spark_timely.conf.options import SINK_OPTIONS, parse_options
    >>> given = {"path": "log", "timeColumn": "t", "frontier": "bounded", "lateData": "deadLetter"}
    >>> check_idle_options(parse_options(SINK_OPTIONS, {**given, "idleTimeout": "10 minutes"}))
    600.0
    """
    timeout = options.idle_timeout
    assert timeout is not None
    if options.frontier != "bounded":
        found = f"frontier={options.frontier or 'batch'!r}"
        raise _refusal(
            found=found, hint="leave it out with other policies: it gives up the lateness of frontier='bounded'"
        )
    if "late_data" not in options.given:
        raise _refusal(
            found="no option 'lateData'",
            hint="choose lateData='deadLetter' or 'advance' for rows within the lateness, which may be late after an"
            " idle time, or 'error' to let the query fail",
        )
    if timeout.seconds <= 0:
        raise _refusal(found=repr(timeout.text), hint="write for example '10 minutes'")
    return timeout.seconds


def _refusal(*, found: str, hint: str) -> InvalidOptionError:
    msg = f"could not use option 'idleTimeout': found {found}"
    return InvalidOptionError(msg, hint=hint, context={"option": "idleTimeout"})


def greatest_seen(log: Log, stream: str, /) -> int | None:
    """Return the greatest time of a stream's messages, those left out that lay too far in the future.

    Parameters
    ----------
    log : Log
        With times of one coordinate.
    stream : str

    Returns
    -------
    int or None
        None without messages.

    Notes
    -----
    Free: the stream's newest commit says it.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> writer = log.writer(owner="me")
    >>> outcome = writer.append(pa.table({"_time": [3, 7], "v": [1, 2]}), advance_to=4)
    >>> greatest_seen(log, "main")
    7
    """
    state = log.core.stream(stream)
    return None if state is None else state.note.greatest


class IdleWatch:
    """Watch one query, and advance its stream when it is idle.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        Spark's handle, classic or Connect; asked for its last report only.
    options : SinkOptions
        Options of the capture, with `idle_timeout`.
    find : callable
        Opens the log.

    Notes
    -----
    Cost: one report of the query per look, and one refresh of the log where the last commit seen is old
    enough.
    """

    def __init__(
        self,
        query: StreamingQuery,
        options: SinkOptions,
        *,
        find: Callable[[str, dict[str, str]], Log | None] = find_log,
    ) -> None:
        self._query = query
        self._options = options
        self._timeout_us = round(check_idle_options(options) * 1_000_000)
        self._find = find
        self._opened: Log | None = None
        self._committed = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # The timer ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look now and then, in a thread of its own, until the query has ended or `stop` is called.

        Raises
        ------
        InvalidOptionError
            If the query's checkpoint cannot be read from here: whether a micro-batch is under way would
            not be known.
        """
        location = str(self._options.checkpoint_location)
        known = checkpoint_state(location, storage_options=self._options.storage_options)
        if known.query != str(self._query.id):
            found = "no query's files" if known.query is None else f"files of query {known.query!r}"
            raise _refusal(
                found=f"{found} in checkpoint {location!r}",
                hint="put the checkpoint, and the log, where the process that calls start can reach them too",
            )
        self._thread = aside("idle", self._run)

    def stop(self) -> None:
        """Look no more. A look that is under way is waited for."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        low, high = _LOOK_S
        pause = min(max(self._timeout_us / 8_000_000, low), high)
        backoff = Backoff(first_s=2 * pause, most_s=max(pause, _FAILING_S))
        while not self._ended.wait(backoff.pause_s or pause):
            try:
                if not self._query.isActive:
                    return
                self.look()
            except (OwnershipError, ClosedError) as error:
                _log.warning("the idle timeout of query %s has ended: %s", self._query.id, error)
                return
            except Exception as error:  # noqa: BLE001 - a timer that dies unnoticed would hold the frontier back
                backoff.failed()
                if backoff.n_failed == 1:
                    _log.warning(
                        "could not look whether query %s is idle: found %s — hint: it is tried again as long as the"
                        " query lives; until then the stream is not advanced",
                        self._query.id,
                        error,
                    )
            else:
                if n := backoff.n_failed:
                    _log.info("looked again whether query %s is idle, after %d failures", self._query.id, n)
                backoff.passed()

    # One look ----------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Advance the stream if the query is idle by its last report; return whether it was advanced.

        Raises
        ------
        OwnershipError
            If the stream is another's.
        RolledBackError
            If the log lost micro-batches of the query: their times would be declared complete.
        StorageError
            If log or checkpoint cannot be reached.
        """
        report = self._query.lastProgress
        if report is None or "addBatch" in report["durationMs"]:
            return False
        looked = _microseconds(str(report["timestamp"]))
        # Known from an earlier look: commits since can only be later.
        if looked - self._committed < self._timeout_us:
            return False
        log = self._log()
        state = None if log is None else log.core.stream(self._options.stream)
        if log is None or state is None or state.closed:
            return False
        if state.owner != str(self._query.id):
            msg = f"could not advance stream {state.stream!r}: found it owned by {state.owner!r}"
            raise OwnershipError(msg, hint="stop this query: it has lost the stream", context={"stream": state.stream})
        self._committed = _committed_at(log, state)
        if looked - self._committed < self._timeout_us:
            return False
        return self._advance(log, state)

    def _log(self) -> Log | None:
        # Whether the query may continue on a log that was restored is judged by its checkpoint.
        with contextlib.suppress(RolledBackError):
            if self._opened is not None:
                self._opened.refresh()
                return self._opened
        self._opened = self._find(self._options.path, self._options.storage_options)
        return self._opened

    def _advance(self, log: Log, state: StreamState) -> bool:
        greatest = greatest_seen(log, state.stream)
        if greatest is None:
            return False
        following = log.domain.successor((greatest,))
        target = Antichain.of((greatest,) if following is None else following)
        if target.less_equal_frontier(state.frontier):
            return False
        timeout = Duration(self._timeout_us).text
        shown = log.domain.types[0].render(greatest)
        times, deltas = downgrade_to(state.counts, target)
        with gate(str(self._options.checkpoint_location), storage_options=self._options.storage_options) as free:
            if not free:
                return False
            check_unbroken(self._options, log, str(self._query.id))
            try:
                log.core.commit(
                    CommitRequest(
                        stream=state.stream,
                        owner=str(self._query.id),
                        progress_times=times,
                        progress_deltas=deltas,
                        expected_seq=state.seq,
                        reason=f"idle: no micro-batch for {timeout}, all rows up to {shown} are complete",
                        carry=True,
                    )
                )
            except UpperMismatchError:
                # A micro-batch was committed meanwhile: not idle.
                return False
        return True


def _committed_at(log: Log, state: StreamState) -> int:
    """Return when the newest commit of a stream was made, in microseconds; later where files were merged.

    Not the clock recorded with it, which a micro-batch takes when it is planned.
    """
    index = log.core.progress_files()
    holds = index.may_hold_stream(state.stream) & (index.seq_lo <= state.seq) & (index.seq_hi >= state.seq)
    modified = index.modified[holds]
    return max(state.at, int(modified.max()) * 1000 if len(modified) else 0)


def _microseconds(timestamp: str) -> int:
    moment = parse_moment(timestamp, without_zone="utc")
    assert moment is not None
    return moment
