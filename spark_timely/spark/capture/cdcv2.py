"""Capture of CDCv2's messages in ``foreachBatch``: copies and any order give the same log.

CDCv2 is the protocol of differential dataflow for change data: each update and each statement about progress may come
several times, and in any order. `foreach_batch` leaves a micro-batch of such messages to this module; the formats
themselves are in `spark_timely.interop.cdcv2`.

The log itself says which updates have come: they are written as soon as they come, as messages at times that are
still open, and what comes again at such a time is compared with them by a shuffle on the executors; what comes at a
complete time is a copy. Of the statements the driver keeps those that are not used up, in a small file beside the
log that the commit names.

Invariants
----------
1. The stream holds each update once. Which ones it holds depends on what has come, and on nothing else.
2. Updates and frontier of a micro-batch are one commit, together with the name of the file that has its statements. A
   micro-batch that is run again finds everything there, and changes nothing.
3. The stream's frontier is that of `spark_timely.interop.cdcv2.statements.Ledger`: that of CDCv2's own reader.
4. A file of statements is deleted only after a later commit that names another one, or none.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    ProtocolError,
    RolledBackError,
    SchemaMismatchError,
    shown,
)
from spark_timely.interop.cdcv2.statements import COLUMNS, Ledger, statements_of
from spark_timely.log.machine.state import CommitOutcome, StreamState
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import TableStorage
from spark_timely.log.writer import downgrade_to
from spark_timely.sink.commit import commit_reports, is_refusal
from spark_timely.sink.plan import BatchId, CapturePlan, Standing, find_log
from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.capture.classify import SQL_TYPES, RowClass, beyond_sql, classify, quoted
from spark_timely.spark.capture.staging import (
    Staged,
    counted,
    discard,
    in_order,
    remove,
    staging_folder,
    tidy,
    write_files,
)
from spark_timely.spark.frames.collection import refuse_maps
from spark_timely.spark.frames.scan import scan
from spark_timely.spark.session import changed_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_timely.interop.cdcv2.statements import Statement, Time
    from spark_timely.time.domain import TimeDomain


MOST_COUNTS = 1_000_000
"""Counts of times that are not complete; more are refused, for they are read and written with each micro-batch."""

_FOLDER = "_cdcv2"
# Spark cuts each shuffle into 200 pieces otherwise, and as many files.
_CONF = {"spark.sql.adaptive.enabled": "true", "spark.sql.adaptive.coalescePartitions.enabled": "true"}


def capture_messages(df: DataFrame, plan: CapturePlan, ident: BatchId) -> CommitOutcome:
    """Append a micro-batch of CDCv2's messages to a log.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Rows as `spark_timely.interop.cdcv2.statements` describes them.
    plan : CapturePlan
    ident : BatchId

    Returns
    -------
    CommitOutcome
        `committed` is False where the log holds the micro-batch already, or its stream is complete.

    Raises
    ------
    ProtocolError
        If messages contradict one another or updates are not consolidated. The log is as it was.
    RolledBackError
        If the micro-batch is in the log, and now has messages that are not.
    InvalidUsageError, SchemaMismatchError
        If a row is neither an update nor a statement, or does not fit the log.
    DataLossError
        If the statements that the log's last commit names are not there.

    Notes
    -----
    Cost: reading the rows twice; a shuffle of the updates and of those in files that have open times; two small
    jobs. Open updates stay on the executors; the driver holds counts by open time.
    """
    refuse_maps(df, "capture with dialect='cdcv2'", SchemaMismatchError)
    repeated = plan.standing(ident).repeated
    task = _Task(df, plan, ident, open_storage(plan.options.path, plan.options.storage_options))
    if plan.newest is not None and plan.newest.closed:
        # Everything is complete: what comes is a copy.
        task.forget_before(plan.newest.seq, None)
        return CommitOutcome(committed=False, state=plan.newest)
    with changed_settings(df.sparkSession, _CONF, purpose="cdcv2"):
        return task.run() if repeated is None else task.confirm(repeated)


@dataclass(frozen=True, slots=True)
class _Task:
    """A micro-batch on its way into the log."""

    df: DataFrame
    plan: CapturePlan
    ident: BatchId
    storage: TableStorage

    @property
    def domain(self) -> TimeDomain:
        return self.plan.policy.domain

    @property
    def standing(self) -> Standing:
        """What is held now, also where the micro-batch is a repeated one."""
        return self.plan.fresh

    def run(self) -> CommitOutcome:
        """Write what is new, and commit it with what is complete by it."""
        plan, stream = self.plan, self.plan.options.stream
        self._check_beginning()
        seq = 1 if self.standing.seq is None else self.standing.seq + 1
        ledger = self._ledger()
        ledger.take(self._statements())
        staging = staging_folder(stream, seq)
        old = self._open_files()
        state = None
        try:
            data, written = counted(self._new(seq, old), self.storage)
            ordered = in_order(data, self.domain.columns)
            write_files(ordered, self.storage, staging, plan.options, by_class=True)
            report = Staged(plan, self.ident, self.standing, self.storage, staging, False, written).report()  # noqa: FBT003
            frontier = ledger.advance(self._present(ledger, [*old, *(file.path for file in report.files)]))
            self._check_size(ledger)
            times, deltas = downgrade_to(self.standing.counts, frontier)
            state = self._keep(ledger, seq)
            report = replace(report, progress_times=times, progress_deltas=deltas, statements=state or "")
        except BaseException:
            remove(self.storage, staging)
            self._forget(state)
            raise
        try:
            outcome = commit_reports(plan, self.ident, [report])
        except BaseException as error:
            if is_refusal(error):
                discard(plan, self.storage, staging, report)
                self._forget(state)
            raise
        tidy(self.storage, staging, {file.path for file in report.files} if outcome.committed else set())
        if outcome.committed:
            self.forget_before(seq, state)
        return outcome

    def confirm(self, recorded: StreamState) -> CommitOutcome:
        """Find everything of a repeated micro-batch in the log."""
        self.forget_before(recorded.seq, self._named(self.plan.newest))
        ledger = self._ledger()
        before = ledger.to_json()
        ledger.take(self._statements())
        data = self._new(self.standing.seq or 0, self._open_files()).limit(1).toArrow()
        if data.num_rows or ledger.to_json() != before:
            found = f"a new update {shown(data.to_pylist()[0])}" if data.num_rows else "a new statement"
            msg = f"could not capture micro-batch {self.ident.batch} again: found {found}, which the log does not have"
            raise RolledBackError(
                msg,
                hint="use a source that can be replayed, and a checkpoint of this input: the source gave other rows"
                " when the micro-batch was repeated",
                context={"stream": self.plan.options.stream, "batch": self.ident.batch},
            )
        return CommitOutcome(committed=False, state=recorded)

    def _check_beginning(self) -> None:
        """Refuse a new stream that would begin behind the log's least time: what comes before were no copies."""
        held = self.standing.counts.frontier
        if self.plan.newest is None and held != self.domain.minimum_frontier:
            msg = (
                f"could not open stream {self.plan.options.stream!r} of log {self.plan.options.path!r} for CDCv2: found"
                f" that it would begin at {self.domain.render_frontier(held)}"
            )
            raise InvalidUsageError(
                msg,
                hint="capture into a new log, or make it with streams=… for as many streams as it will have: no"
                " capability is left at the log's least time, and earlier updates would be taken for copies",
            )

    # Statements ----------------------------------------------------------------------------------

    def _ledger(self) -> Ledger:
        """Read what was kept of the statements; where the stream was moved on by hand, that much is complete."""
        held, state = self.standing.counts.frontier, self.plan.newest
        name = self._named(state)
        if not name:
            return Ledger(held, shown=self.domain.render_time)
        path = f"{_FOLDER}/{name}"
        if not self.storage.exists(path):
            msg = f"could not continue stream {self.plan.options.stream!r}: found no file {path!r} in the log's folder"
            raise DataLossError(
                msg,
                hint="restore the file, which has the statements that came and are not complete; or capture into a"
                " new log what the producer sends once more",
            )
        kept = json.loads(self.storage.read(path).to_pybytes())
        ledger = Ledger.from_json(kept, arity=self.domain.arity, shown=self.domain.render_time)
        ledger.pass_over(held)
        return ledger

    def _named(self, state: StreamState | None) -> str | None:
        """Return the file that the stream's last commit of this dialect names."""
        return None if state is None else state.note.statements

    def _keep(self, ledger: Ledger, seq: int) -> str | None:
        """Write down what is kept of the statements; None where the frontier says it all."""
        if not ledger.size and ledger.known == ledger.frontier:
            return None
        name = f"{self.plan.options.stream}-{seq:012d}-{secrets.token_hex(8)}.json"
        self.storage.write(f"{_FOLDER}/{name}", json.dumps(ledger.to_json(), separators=(",", ":")).encode())
        self.storage.flush([f"{_FOLDER}/{name}"])
        return name

    def _forget(self, name: str | None) -> None:
        if name is not None:
            self.storage.delete(f"{_FOLDER}/{name}")

    def forget_before(self, seq: int, name: str | None) -> None:
        """Delete files of this stream up to a commit that no commit names any more: those of other attempts too.

        Later ones may be another process's, which has gone on since this one was held up.
        """
        # Of this stream alone: another one's name may begin with this one's.
        of_stream = re.compile(rf"{re.escape(self.plan.options.stream)}-(\d{{12,}})-[0-9a-f]{{16}}\.json")
        for other in self.storage.names(_FOLDER):  # a few
            found = of_stream.fullmatch(other)
            if found is not None and int(found[1]) <= seq and other != name:
                self._forget(other)

    def _check_size(self, ledger: Ledger) -> None:
        if ledger.size > MOST_COUNTS:
            waiting = ledger.waiting
            gap = f", of them {len(waiting)} statements from {waiting[0].lower!r} on that wait" if waiting else ""
            msg = f"could not capture CDCv2 messages: found {ledger.size} counts of times that are not complete{gap}"
            raise ProtocolError(
                msg,
                hint=f"read fewer messages per micro-batch, and let the producer send again what is missing from"
                f" {self.domain.render_frontier(ledger.frontier)} on: at most {MOST_COUNTS} are kept",
            )

    def _statements(self) -> list[Statement]:
        """Bring the micro-batch's statements here, each once."""
        names = [quoted(name) for name in self.plan.roles.statements]
        types = [SQL_TYPES[kind.value] for kind in self.domain.types]
        time = types[0] if len(types) == 1 else f"STRUCT<{', '.join(f't{i}: {kind}' for i, kind in enumerate(types))}>"
        wanted = (f"ARRAY<{time}>", f"ARRAY<{time}>", f"ARRAY<STRUCT<time: {time}, n: BIGINT>>")
        columns = [
            f"CAST({name} AS {kind}) AS {column}" for name, kind, column in zip(names, wanted, COLUMNS, strict=True)
        ]
        others = [quoted(name) for name in (*self.plan.roles.times, str(self.plan.roles.diff))]
        mixed = " OR ".join([*(f"{name} IS NULL" for name in names), *(f"{name} IS NOT NULL" for name in others)])
        found = self.df.where(_is_statement(names)).selectExpr(*columns, f"({mixed}) AS mixed").distinct().toArrow()
        if pc.any(found["mixed"]).as_py():
            row = found.filter(found["mixed"]).slice(0, 1).drop_columns(["mixed"]).to_pylist()[0]
            msg = f"could not capture CDCv2 messages: found row {shown(row)} that is neither update nor statement"
            raise SchemaMismatchError(
                msg,
                hint="give a statement all of _lower, _upper and _counts, and nulls in time and diff; an update none"
                " of them",
            )
        return statements_of(found, self.domain)

    # Updates -------------------------------------------------------------------------------------

    def _open_files(self) -> list[str]:
        """Return the files of the stream that may have messages at open times."""
        if self.plan.newest is None:
            return []
        log = find_log(self.plan.options.path, self.plan.options.storage_options)
        if log is None:
            return []
        index = log.core.files()
        log.core.look_into(lambda files: files.may_hold_times(self.standing.counts.frontier, None))
        chosen = index.may_hold_times(self.standing.counts.frontier, None)
        chosen &= index.may_hold_stream(self.plan.options.stream)
        return list(index.paths[chosen].tolist())

    def _read(self, paths: list[str]) -> DataFrame:
        """Read messages at open times from files of the log, in the log's columns."""
        form = self.plan.roles.form
        fields = [pa.field("_stream", pa.string())]
        fields += [pa.field(n, kind.arrow) for n, kind in zip(self.domain.columns, self.domain.types, strict=True)]
        fields += [pa.field("_diff", pa.int64()), *(field.with_nullable(nullable=True) for field in form.payload)]
        held = beyond_sql(self._times, self.domain, self.standing.counts.frontier.elements)
        mine = f"_stream = '{self.plan.options.stream}' AND ({held})"
        return scan(self.df.sparkSession, self.storage, paths, pa.schema(fields)).where(mine)

    @property
    def _times(self) -> list[str]:
        return [quoted(name) for name in self.domain.columns]

    def _new(self, seq: int, old: list[str]) -> DataFrame:
        """Return the updates that the log does not have, each once, and what must be refused, by `_event`."""
        from pyspark.sql import functions

        plan = self.plan
        updates = self.df.where(f"NOT {_is_statement([quoted(name) for name in plan.roles.statements])}")
        rows = classify(plan, self.standing, self.df.schema, seq=seq)
        columns = (*rows.columns, f"{rows.row_class} AS `_event`") if rows.uniform else rows.columns
        first = beyond_sql(self._times, self.domain, [self.domain.minimum])
        judged = updates.selectExpr(*columns).withColumn(
            "_event",
            functions.expr(
                f"CASE WHEN _event = '{RowClass.LATE}' AND NOT ({first}) THEN '{RowClass.BEFORE}' ELSE _event END"
            ),
        )
        keys = [*self.domain.columns, *plan.roles.form.payload.names]
        have = set(judged.columns)
        # A column of the log that the data does not have is null in every record.
        absent = {name: "NULL" for name in keys if name not in have}
        fields = {field.name: field for field in spark_schema(plan.roles.form.payload)}
        listed = [
            f"CAST({absent[name]} AS {fields[name].dataType.simpleString()}) AS {quoted(name)}"
            if name in absent
            else quoted(name)
            for name in keys
        ]
        both = judged.where(f"_event <> '{RowClass.LATE}'").selectExpr(*listed, "_diff", "_event")
        if old:
            known = self._read(old).selectExpr(*map(quoted, keys), "_diff", "'old' AS _event")
            both = both.unionAll(known)
        groups = both.groupBy(*map(quoted, keys)).agg(
            functions.expr("min(_diff) AS _cdc_low"),
            functions.expr("max(_diff) AS _cdc_high"),
            functions.expr("max(_event = 'old') AS _cdc_old"),
            functions.expr(f"max(IF(_event IN ('{RowClass.MESSAGE}', 'old'), NULL, _event)) AS _cdc_bad"),
        )
        event = (
            "CASE WHEN _cdc_bad IS NOT NULL THEN _cdc_bad"
            f" WHEN _cdc_low <> _cdc_high THEN '{RowClass.UNCONSOLIDATED}'"
            f" WHEN _cdc_low = 0 THEN '{RowClass.ZERO}'"
            f" WHEN _cdc_old THEN 'old' ELSE '{RowClass.MESSAGE}' END AS _event"
        )
        payload = [quoted(name) for name in plan.roles.form.payload.names if name not in absent]
        return groups.selectExpr(
            f"'{plan.options.stream}' AS `_stream`",
            f"CAST({seq} AS BIGINT) AS `_seq`",
            *self._times,
            "_cdc_low AS `_diff`",
            *payload,
            event,
        ).where("_event <> 'old'")

    def _present(self, ledger: Ledger, paths: list[str]) -> dict[Time, int]:
        """Count the updates at the open times of which the number is stated."""
        if not paths or ledger.known == ledger.frontier:
            return {}
        rows = self._read(paths)
        if not ledger.known.is_empty:
            rows = rows.where(f"NOT ({beyond_sql(self._times, self.domain, ledger.known.elements)})")
        counted = rows.groupBy(*self._times).count().toArrow()
        times = self.domain.from_columns(counted)
        return dict(zip(map(tuple, times.tolist()), np.asarray(counted["count"]).tolist(), strict=True))


def _is_statement(names: list[str]) -> str:
    return "(" + " OR ".join(f"{name} IS NOT NULL" for name in names) + ")"
