"""The staging folder of a capture: Spark writes one commit's Parquet files there, and footers describe them.

`foreach_batch` and `cdcv2` write through it. The files stay where Spark wrote them; the commit names them there. Counts
and bounds for the table's entry come from their footers.

Invariants
----------
1. Nothing of a folder is part of the log before a commit names its files.
2. A file is deleted only after the log was read again and does not name it.
3. Files hold their rows in the order of times, whether Spark sorted the rows or they came so. Where they are only taken
   to come so, it is looked up in the files.
4. Files are put into place when the job ends, from the attempts that the driver knows: whatever other attempts do
   then, and later, is not seen.
5. Files that are on the driver's host are flushed before a commit names them. Executors on other hosts write with
   Spark's own means, which do not flush.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.canonical.content import OF_TASK, added, budget, digest_of_messages, is_worth_it
from spark_timely.errors import (
    InvalidUsageError,
    ProtocolError,
    SchemaMismatchError,
    StorageError,
    TimelyError,
    shown,
)
from spark_timely.log.files.format import in_schema
from spark_timely.log.files.parquet import SAMPLE_ROWS, dictionary_columns
from spark_timely.log.files.parquet_reader import open_parquet
from spark_timely.log.files.statistics import describe_file
from spark_timely.log.machine.state import DataFile
from spark_timely.log.store.storage import TableStorage
from spark_timely.protocol.policy import FrontierPolicy, bad_time_hint, late_error
from spark_timely.sink.columns import fingerprint
from spark_timely.sink.commit import TaskReport
from spark_timely.sink.plan import BatchId, CapturePlan, Standing, find_log
from spark_timely.spark.base.observed import observed
from spark_timely.spark.capture.classify import RowClass, digest_in
from spark_timely.spark.frames.scan import spark_root
from spark_timely.spark.session import changed_settings
from spark_timely.threads import at_once, begun, pool
from spark_timely.time.antichain import IntArray, beyond, consolidate_rows, is_sorted, joined_bounds, minimal
from spark_timely.time.domain import plain_value

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, Observation

    from spark_timely.conf.options import SinkOptions


# Without microseconds Spark writes INT96, which has no statistics; rebasing would move old dates.
_CONF = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # One open file per class of rows, instead of a sort of all rows by class.
    "spark.sql.maxConcurrentOutputFileWriters": str(2 * len(RowClass)),
}
_READERS = 4
_MOST_READ_ROWS, _MOST_READ_FILES = 16 * 1024, 4
# Measured on 10 million rows: the Python writer's 128 Ki make `capture` 5 % slower, 512 Ki change nothing;
# a replay of a hundredth of the times takes as long with any of the three.
_ROW_GROUP_ROWS = 256 * 1024


def staging_folder(stream: str, seq: int) -> str:
    """Return a new directory, relative to the log, for the files of a commit.

    Examples
    --------
    >>> staging_folder("main", 7)[:32]
    '_event=message/main-000000000007'
    """
    return f"_event=message/{stream}-{seq:012d}-{secrets.token_hex(8)}"


def counted(
    data: DataFrame, storage: TableStorage, sums: Sequence[str] | None = None
) -> tuple[DataFrame, Observation | None]:
    """Let Spark compute aggregates within the job that writes the rows.

    Parameters
    ----------
    data : pyspark.sql.DataFrame
        One row for each that is written. Nothing may be exchanged between tasks after it, or rows of a task
        that is run again count twice.
    storage : TableStorage
        Where the files go.
    sums : sequence of str, optional
        Aggregates, the number of rows as `n` among them. Without, rows are counted alone, and only where their
        files may be on other machines than this one.
    """
    from pyspark.sql import Observation, functions

    if sums is None:
        sums = [] if storage.local else ["count(1) AS n"]
    if not sums:
        return data, None
    seen = Observation()
    return data.observe(seen, *map(functions.expr, sums)), seen


# Fewer rows are sorted in no time, and say little of the next ones.
_TELLING_ROWS = 64 * 1024
_MOST_HINTS = 1024
# With a blank, which no column of a log has in its name.
_PLACE, _PLACE_NOW, _MOVED = "place before", "place now", "moved"
# Of one column's sample, in the driver: wider values are left to Parquet, whose dictionaries end at 1 MB.
_SAMPLE_BYTES = 8 * 1024 * 1024
_SAMPLE_STEP_ROWS = 4 * 1024


@dataclass(slots=True)
class Hints:
    """Hints of earlier micro-batches for the next one of a stream. They save work, and decide nothing about the rows.

    Known to this process alone: a new one learns it again from its first micro-batch. Looked at are the first, second,
    fourth, eighth … of it.

    Attributes
    ----------
    plain : tuple of str
        Columns whose values hardly repeat, by a sample of a file that was written.
    sorted : bool
        Whether rows came in the order of their times, so that the next ones are not sorted unless they turn out not
        to be.
    """

    plain: tuple[str, ...] = ()
    sorted: bool = False
    _seen: int = 0
    _next: int = 0

    @property
    def due(self) -> bool:
        """Whether this micro-batch is looked at."""
        return self._seen >= self._next

    def learn(self, storage: TableStorage, files: Sequence[DataFile], counts: Mapping[str, int | None]) -> None:
        """Take what a micro-batch tells that is in the log now."""
        due, self._seen = self.due, self._seen + 1
        if not due:
            return
        self._next = 2 * self._seen - 1 if self._seen > 1 else 1
        if sum(file.n_rows for file in files) < _TELLING_ROWS:
            return
        if _MOVED in counts:
            self.sorted = counts[_MOVED] == 0
        with suppress(TimelyError, OSError, pa.ArrowException):  # a file that cannot be read is none of our business
            self.plain = _plain_columns(storage, max(files, key=lambda file: file.n_rows).path)

    def disappointed(self) -> None:
        """Note that rows did not come in order, against what was taken for granted: look again much later."""
        self.sorted = False
        self._next = 2 * self._seen + 8


_hints: dict[tuple[str, str], Hints] = {}


def hints_of(storage: TableStorage, stream: str) -> Hints:
    """Return what is known of a stream in this process."""
    if len(_hints) >= _MOST_HINTS:
        _hints.clear()
    return _hints.setdefault((storage.uri, stream), Hints())


def _plain_columns(storage: TableStorage, path: str) -> tuple[str, ...]:
    """Return the columns of a file that a dictionary would not make smaller, as the sink's writer chooses them."""
    plain: list[str] = []
    with open_parquet(storage, path) as file:
        for column in file.schema_arrow:
            # Parquet's setting takes a dot for a step into a struct. Structs, lists and maps keep their dictionaries.
            if not pa.types.is_nested(column.type) and "." not in column.name:
                sample = _sample(file, column.name)
                if sample is not None and dictionary_columns(sample) == []:
                    plain.append(column.name)
    return tuple(plain)


def _sample(file: pq.ParquetFile, name: str) -> pa.Table | None:
    """Return the first values of a column; None where they are too wide for a sample."""
    taken: list[pa.RecordBatch] = []
    n_rows = n_bytes = 0
    for batch in file.iter_batches(batch_size=_SAMPLE_STEP_ROWS, columns=[name]):
        taken.append(batch.select([name]))
        n_rows, n_bytes = n_rows + batch.num_rows, n_bytes + taken[-1].nbytes
        if n_bytes > _SAMPLE_BYTES:
            return None
        if n_rows >= SAMPLE_ROWS:
            break
    return pa.Table.from_batches(taken) if taken else None


def placed(columns: Sequence[str]) -> list[str]:
    """Return the columns with the place of a row in its task, from which `displaced` counts what a sort moves."""
    return [*columns, f"monotonically_increasing_id() AS `{_PLACE}`"]


def displaced(data: DataFrame) -> tuple[DataFrame, list[str]]:
    """Return sorted rows with their places before and now, and the aggregate of how many were moved."""
    now = data.selectExpr("*", f"monotonically_increasing_id() AS `{_PLACE_NOW}`")
    return now, [f"count_if(`{_PLACE}` <> `{_PLACE_NOW}`) AS {_MOVED}"]


def without_places(data: DataFrame) -> DataFrame:
    """Return the rows as they are written."""
    return data.drop(_PLACE, _PLACE_NOW)


def in_order(data: DataFrame, sort_by: Sequence[str]) -> DataFrame:
    """Return the rows in the order in which a file holds them."""
    # Measured: a sixth more work for the write; a replay of a tenth of the times then reads a tenth.
    return data.sortWithinPartitions(*sort_by) if sort_by else data


def write_files(
    data: DataFrame,
    storage: TableStorage,
    staging: str,
    options: SinkOptions,
    *,
    by_class: bool,
    plain: Sequence[str] = (),
) -> None:
    """Run the write job: rows with all columns of a file, and `_event` where they are set apart by class.

    Columns in `plain` get no dictionary; see `Hints`.
    """
    root = spark_root(data.sparkSession, storage)
    writer = (
        data.write.option("compression", "uncompressed" if options.compression == "none" else options.compression)
        .option("parquet.block.row.count.limit", str(_ROW_GROUP_ROWS))
        # A marker file would stay in the log for ever.
        .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        # With version 2, which sessions may have as their default, each attempt at a task puts its files into place
        # itself, all attempts under the same names: one that was given up, and lives on, would replace files that a
        # commit names. Version 1 costs a second copy of each file in a store.
        .option("mapreduce.fileoutputcommitter.algorithm.version", "1")
    )
    if options.compression == "zstd":
        # Parquet's own default, 3, makes files a thousandth smaller and takes a tenth more work.
        writer = writer.option("parquet.compression.codec.zstd.level", "1")
    for name in plain:
        writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
    if by_class:
        writer = writer.partitionBy("_event")
    with changed_settings(data.sparkSession, _CONF, purpose="capture"):
        writer.parquet(f"{root}/{staging}")


@dataclass(slots=True)
class Staged:
    """Files that the job wrote, and what their footers say; `written` has what Spark counted, see `counted`."""

    plan: CapturePlan
    ident: BatchId
    standing: Standing
    storage: TableStorage
    staging: str
    uniform: bool
    written: Observation | None = None
    counts: Mapping[str, int | None] = field(default_factory=dict)

    def is_sorted(self) -> bool:
        """Whether each file of the log holds its rows in the order of their times.

        Cost: one read of the time columns, which are small where they are sorted.
        """
        found = self._files()
        names = self.plan.policy.domain.columns
        paths = [path for row_class in RowClass.stored() for path in found.get(row_class, [])]
        return all(at_once(lambda path: _is_file_sorted(self.storage, path, names), paths, _READERS))

    def report(self) -> TaskReport:
        """Refuse what may not be captured, else describe what was written."""
        found = self._files()
        self._check_classes(found)
        domain = self.plan.policy.domain
        stored = {row_class: paths for row_class, paths in found.items() if row_class in RowClass.stored()}
        files: dict[RowClass, list[DataFile]] = {}
        # Spark leaves the flush to the system. What a task wrote on another host is beyond this one's reach.
        with pool("flush", 1) as threads:
            flushed = begun(threads, self.storage.flush, [path for paths in stored.values() for path in paths])
            # As many files as tasks, times classes.
            for row_class, paths in stored.items():
                event = "dead" if row_class is RowClass.DEAD else "message"
                described = [self._described(path, event) for path in paths]
                files[row_class] = [file for file in described if file.n_rows]
            flushed.result()
        counts = self.counts = {} if self.written is None else observed(self.written)
        n_stored = sum(_n_rows(files, kind) for kind in files)
        self._check_all_there(n_stored, found.get(RowClass.PROGRESS, []), counts.get("n"))
        if self.uniform:
            self._check_uniform(files.get(RowClass.MESSAGE, []))
        for kind in RowClass.messages():
            files[kind] = self._with_digests(files.get(kind, []), n_stored, sum(map(len, files.values())))
        messages = [file for kind in RowClass.messages() for file in files[kind]]
        moving = [file for file in messages if file not in files.get(RowClass.KEPT, [])]
        tops = [(int(file.bounds[1, 0]), file.path) for file in moving if file.bounds is not None]
        # The first of the greatest.
        top = max(tops, key=lambda each: each[0], default=None)
        times, deltas = self._progress(found.get(RowClass.PROGRESS, []))
        bounded = self.plan.policy.frontier is FrontierPolicy.BOUNDED
        empty = np.zeros((0, domain.arity), dtype=np.int64)
        return TaskReport(
            ident=self.ident,
            seq=self.standing.seq,
            repeated=False,
            form=fingerprint(self.plan.roles),
            at=self.standing.at,
            base=self.standing.base,
            n_rows=sum(file.n_rows for file in messages),
            n_dead=_n_rows(files, RowClass.DEAD),
            n_advanced=_n_rows(files, RowClass.ADVANCED),
            n_skewed=_n_rows(files, RowClass.KEPT),
            minima=minimal(np.concatenate([file.minima for file in messages])) if messages else empty,
            bounds=joined_bounds([file.bounds for file in messages if file.bounds is not None]),
            greatest=top[0] if bounded and top is not None else None,
            mover=_partition_of(top[1]) if bounded and top is not None else "",
            progress_times=times,
            progress_deltas=deltas,
            files=(*messages, *files.get(RowClass.DEAD, [])),
            digest=digest_in(counts),
        )

    def _check_all_there(self, rows: int, progress: list[str], written: int | None) -> None:
        """Refuse a path that executors do not share with the driver: what they wrote would be left behind there."""
        if written is None and self.storage.local:
            return
        for path in progress:
            with open_parquet(self.storage, path) as file:
                rows += file.metadata.num_rows
        if rows != written:
            msg = f"could not capture into log {self.plan.options.path!r}: found {rows} of {written} rows written"
            hint = "give a path that driver and executors share: a mounted directory, or a cloud URL"
            if written is None:
                msg = f"could not capture into log {self.plan.options.path!r}: found no count of the rows written"
                hint = "restart the query: Spark has dropped the event that holds the count, its listeners are too slow"
            raise StorageError(
                msg,
                hint=hint,
                determinate=True,
                context={"path": self.plan.options.path},
            )

    def _described(self, path: str, event: str) -> DataFile:
        """Describe a file; where its times cannot be read, name the row and the user's column."""
        domain = self.plan.policy.domain
        try:
            return describe_file(self.storage, path, domain=domain, event=event)
        except InvalidUsageError as error:
            highs = np.array([kind.hi for kind in domain.types], dtype=np.int64)
            for row_class in (RowClass.NO_TIME, RowClass.OVER):
                rows = self._find(path, row_class, highs)
                if rows.num_rows:
                    raise self._refusal(row_class, rows) from error
            raise

    def _with_digests(self, files: list[DataFile], n_rows: int, n_files: int) -> list[DataFile]:
        """Return files of messages with digests, where that is worth to read them again.

        Spark has no multiplication that wraps, so the digest that other writers make is not one of its aggregates.
        """
        wanted = self.plan.options.content_digest
        # A small file of a local disk is read in a millisecond or two; a micro-batch takes 200 ms and more.
        few = self.storage.local and n_rows <= _MOST_READ_ROWS and n_files <= _MOST_READ_FILES
        if wanted == "off" or (wanted == "auto" and not few):
            return files
        within = budget(wanted, OF_TASK)
        schema = self.plan.roles.form.data_schema
        return at_once(
            lambda file: replace(file, digest=_digest_of(self.storage, file.path, schema, within)), files, _READERS
        )

    def _files(self) -> dict[RowClass, list[str]]:
        """List the files of the job by class."""
        found: dict[RowClass, list[str]] = {}
        folders = [(RowClass.MESSAGE, self.staging)]
        if not self.uniform:
            names = [name for name in self.storage.names(self.staging) if name.startswith("_event=")]
            folders = [(RowClass(name.partition("=")[2]), f"{self.staging}/{name}") for name in names]
        for row_class, folder in folders:
            found[row_class] = [f"{folder}/{name}" for name in self.storage.names(folder) if name.endswith(".parquet")]
        return found

    def _check_classes(self, found: Mapping[RowClass, list[str]]) -> None:
        """Refuse the micro-batch for the first row of a class that has no place in the log."""
        for row_class in _REFUSED:
            for path in found.get(row_class, []):
                with open_parquet(self.storage, path) as file:
                    rows = next(iter(file.iter_batches(batch_size=1)), None)
                if rows is not None:
                    raise self._refusal(row_class, pa.Table.from_batches([rows]))

    def _check_uniform(self, files: list[DataFile]) -> None:
        """Judge by the footers what the job did not set apart."""
        policy, standing = self.plan.policy, self.standing
        if policy.frontier is FrontierPolicy.BATCH:
            return
        held = standing.counts.frontier.times
        limit = policy.skew_limit(standing.counts, standing.at)
        highs = np.array([kind.hi for kind in policy.domain.types], dtype=np.int64)
        for file in files:
            nulls = json.loads(file.stats)["nullCount"]
            if any(nulls.get(name, 0) for name in policy.domain.columns):
                raise self._refusal(RowClass.NO_TIME, self._find(file.path, RowClass.NO_TIME, highs))
            if file.bounds is not None and (file.bounds[1] > highs).any():
                raise self._refusal(RowClass.OVER, self._find(file.path, RowClass.OVER, highs))
            if not beyond(file.minima, held).all():
                raise self._refusal(RowClass.LATE, self._find(file.path, RowClass.LATE, held))
            if limit is not None and file.bounds is not None and file.bounds[1, 0] > limit:
                raise self._refusal(RowClass.SKEWED, self._find(file.path, RowClass.SKEWED, np.array([[limit]])))

    def _find(self, path: str, row_class: RowClass, bound: IntArray) -> pa.Table:
        """Return the first row of a class in a file that holds one; for errors only."""
        names = self.plan.policy.domain.columns
        tests: dict[RowClass, Callable[[IntArray], object]] = {
            RowClass.OVER: lambda times: (times > bound).any(axis=1),
            RowClass.LATE: lambda times: ~beyond(times, bound),
            RowClass.SKEWED: lambda times: times[:, 0] > bound[0, 0],
        }
        with open_parquet(self.storage, path) as parquet:
            for batch in parquet.iter_batches():  # until the row is found
                table = pa.Table.from_batches([batch])
                if row_class is RowClass.NO_TIME:
                    hits = np.any([table.column(n).is_null().to_numpy() for n in names], axis=0)
                else:
                    hits = np.asarray(tests[row_class](_numbers(table, names)))
                if hits.any():
                    return table.slice(int(np.flatnonzero(hits)[0]), 1)
        return table.slice(0, 0)

    def _refusal(self, row_class: RowClass, rows: pa.Table) -> TimelyError:
        """Return the error for a row that forbids the micro-batch."""
        plan, roles = self.plan, self.plan.roles
        names = roles.form.payload.names
        row = shown(_row(rows, names))
        context = {"stream": plan.options.stream}
        if row_class in (RowClass.LATE, RowClass.SKEWED):
            return late_error(
                plan.policy,
                self.standing.counts,
                at=self.standing.at,
                time=tuple(int(x) for x in _numbers(rows, plan.policy.domain.columns)[0]),
                skewed=row_class is RowClass.SKEWED,
                row=_row(rows, names),
                stream=plan.options.stream,
                held_by=plan.held_by(self.standing),
            )
        if row_class is RowClass.NO_TIME:
            msg = f"could not read time column {', '.join(map(repr, roles.times))}: found null in row {row}"
            hint = bad_time_hint(plan.policy, "filter such rows out or fill the column: every row needs a time")
            return InvalidUsageError(msg, hint=hint, context=context)
        if row_class is RowClass.OVER:
            high = plan.policy.domain.render_time([kind.hi for kind in plan.policy.domain.types])
            msg = f"could not read time column {', '.join(map(repr, roles.times))}: found a time later than {high}"
            msg = f"{msg} in row {row}"
            hint = bad_time_hint(plan.policy, "keep times within the type's bounds")
            return InvalidUsageError(msg, hint=hint, context=context)
        if row_class is RowClass.UNFIT:
            null = [name for name in (*roles.required, "_diff") if rows.schema.get_field_index(name) >= 0]
            bad = [name for name in null if rows.column(name).null_count]
            msg = f"could not fit rows to the log: found null in column {', '.join(map(repr, bad))}, row {row}"
            return SchemaMismatchError(
                msg, hint="fill or drop such rows: the log holds no null there", context={**context, "columns": bad}
            )
        if row_class in _UPDATES:
            time = plan.policy.domain.render_time(_numbers(rows, plan.policy.domain.columns)[0].tolist())
            said, hint = _UPDATES[row_class]
            msg = f"could not capture CDCv2 updates at time={time!r}: found {said} {row}"
            if row_class is RowClass.BEFORE:
                hint = f"the log begins at {plan.policy.domain.render_time(plan.policy.domain.minimum)!r}: {hint}"
            return ProtocolError(msg, hint=hint, context=context)
        msg = f"could not capture events: found row {row}, neither a message nor a progress row with a change"
        return ProtocolError(
            msg,
            hint="filter other rows out: with frontier='events' a row is a 'message' or a 'progress'",
            context=context,
        )

    def _progress(self, paths: list[str]) -> tuple[IntArray, IntArray]:
        """Read the changes of counts that came in the data."""
        domain = self.plan.policy.domain
        times: IntArray = np.zeros((0, domain.arity), dtype=np.int64)
        deltas: IntArray = np.zeros(0, dtype=np.int64)
        for path in paths:
            with open_parquet(self.storage, path) as file:
                table = file.read(columns=[*domain.columns, "_delta"])
            times, deltas = consolidate_rows(
                np.concatenate([times, domain.from_columns(table)]),
                np.concatenate([deltas, table.column("_delta").to_numpy()]),
            )
        return times, deltas


_REFUSED = (
    RowClass.UNKNOWN,
    RowClass.NO_TIME,
    RowClass.OVER,
    RowClass.UNFIT,
    RowClass.LATE,
    RowClass.SKEWED,
    RowClass.BEFORE,
    RowClass.ZERO,
    RowClass.UNCONSOLIDATED,
)
_UPDATES = {
    RowClass.BEFORE: (
        "an update before the log's least time, of record",
        "make it first, with create_log(…, kind='collection', minimum=…)",
    ),
    RowClass.ZERO: ("a diff of 0 of record", "consolidate the updates, and leave out what adds up to nothing"),
    RowClass.UNCONSOLIDATED: (
        "two diffs of record",
        "updates must be consolidated before they are sent, one diff for a record and a time; messages may come twice,"
        " but say the same",
    ),
}


def _digest_of(storage: TableStorage, path: str, schema: pa.Schema, within: int | None) -> int | None:
    """Return the digest of a file, a row group at a time; None where one of them is more work than allowed."""
    total = 0
    with open_parquet(storage, path) as file:
        names = [name for name in schema.names if name in file.schema_arrow.names]
        for group in range(file.metadata.num_row_groups):
            rows = in_schema(file.read_row_group(group, columns=names), schema)
            if not is_worth_it(rows, within):
                return None
            total = added(total, digest_of_messages(rows))
    return total


def _partition_of(path: str) -> str:
    """Return which task wrote a file, by the name that Spark gives it."""
    found = re.match(r"part-(\d+)", path.rsplit("/", 1)[-1])
    return "" if found is None else f"partition {int(found[1])}"


def _numbers(table: pa.Table, names: tuple[str, ...]) -> IntArray:
    """Return time columns as numbers, bounds unchecked: they are what is to be looked at."""
    columns = []
    for name in names:
        column = table.column(name).combine_chunks()
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        columns.append(np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64))
    return np.stack(columns, axis=1)


def _is_file_sorted(storage: TableStorage, path: str, names: tuple[str, ...]) -> bool:
    last: IntArray = np.zeros((0, len(names)), dtype=np.int64)
    with open_parquet(storage, path) as file:
        for batch in file.iter_batches(batch_size=_ROW_GROUP_ROWS, columns=list(names)):
            # A null is refused later, wherever it is.
            times = np.concatenate([last, _numbers(pa.Table.from_batches([batch]), names)])
            if not is_sorted(times):
                return False
            last = times[-1:]
    return True


def _row(rows: pa.Table, names: list[str]) -> dict[str, object]:
    """Return the first row's payload, as it can be shown."""
    return {name: plain_value(rows.column(name)[0]) for name in names if name in rows.column_names}


def _n_rows(files: Mapping[RowClass, list[DataFile]], row_class: RowClass) -> int:
    return sum(file.n_rows for file in files.get(row_class, []))


def discard(plan: CapturePlan, storage: TableStorage, staging: str, report: TaskReport) -> None:
    """Delete a staging directory but for files that the log knows; where that is not known, nothing."""
    try:
        log = find_log(plan.options.path, plan.options.storage_options)
        known = set() if log is None else log.core.live_paths({file.path for file in report.files})
    except (TimelyError, OSError):
        return
    tidy(storage, staging, known)


def remove(storage: TableStorage, staging: str) -> None:
    """Delete a staging directory whose files the log surely does not know."""
    tidy(storage, staging, set())


def tidy(storage: TableStorage, staging: str, keep: set[str]) -> None:
    """Delete everything in a staging directory but the files of the log: checksums, progress rows, leftovers."""
    try:
        # Each class has a directory of its own.
        for name in storage.names(staging):
            folder = f"{staging}/{name}"
            leaves = storage.names(folder) if name.startswith("_event=") else []
            for path in [f"{folder}/{leaf}" for leaf in leaves] or [folder]:
                if path not in keep and not (storage.local and os.path.isdir(storage.full(path))):
                    storage.delete(path)
            if storage.local and not any(path.startswith(f"{folder}/") for path in keep):
                with suppress(OSError):  # a file, or not empty
                    os.rmdir(storage.full(folder))
        if storage.local and not keep:
            shutil.rmtree(storage.full(staging), ignore_errors=True)
    except (StorageError, OSError):
        # What stays is no part of the log.
        return
