"""The mirror of a collection: a plain Delta table of its current contents, which any reader can query.

Users make one with `spark_timely.mirror_to`. Each step brings the table from one upper of the log to the next by one
MERGE. What the step was is recorded in the same commit: `Position`, as text in the commit's own metadata. So a table
says by itself how far it is, and a step that was killed has either happened or not.

Invariants
----------
1. The table as of any of its own commits equals the contents of the log at the upper that the commit records.
2. A position names the log by its id and its newest commits, and the upper as a frontier: another log in its place, or
   one that was put back, is refused. The number of a step only orders the steps of one log among themselves.
3. A commit is made once: Delta refuses, or passes over, a second one of the same number, and after every attempt the
   table is asked what it has.
4. Nobody else may have changed the rows or columns. Every commit of the table since the position that was planned from
   is looked at; what moves files about, as OPTIMIZE does, changes no row.
5. Settings that stamp commits belong to a session of the mirror's own: no other write of the user gets them.
6. A job may outlive its table. When somebody deletes the table, the job commits into the one that was made in its
   place, or makes one whose files are gone. Both are found out, since a position names the one that it follows, and the
   files of a first position are looked for. Such a table is replaced whole, and the user learns of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time as clock
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn
from urllib.parse import unquote

from pyspark.sql import functions as F

from spark_timely.conf.kinds import seconds_of
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogFormatError,
    NegativeMultiplicityError,
    OwnershipError,
    SchemaMismatchError,
    SinceViolationError,
    StorageError,
    UpperMismatchError,
    shown,
)
from spark_timely.log import Log
from spark_timely.log.acceptance import describe_others
from spark_timely.log.cut import Cut
from spark_timely.log.cut import cut as cut_of
from spark_timely.log.log import open_log
from spark_timely.log.machine.lost_commits import ACCEPTED, is_accepted, other_accepted
from spark_timely.log.machine.since import may_read, needed_by_changes
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import checked_options, has_table, normal_path
from spark_timely.log.store.urls import own_options, same_place
from spark_timely.log.wait import wait_until
from spark_timely.masking import masked_logger
from spark_timely.spark.answers.sql import rows_between
from spark_timely.spark.base.compat import is_remote
from spark_timely.spark.base.failure import own_error
from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.base.tags import tagged
from spark_timely.spark.frames.collection import held_or_error, refuse_maps, refused_sql, sql_text
from spark_timely.spark.frames.contents import DIFF, StepViews, listed
from spark_timely.spark.frames.scan import quoted, spark_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.time.antichain import Antichain

__all__ = ["COUNT", "Mirror", "MirrorStep", "Position", "mirror_to"]

_logger = masked_logger("spark_timely.answers")

COUNT: Final = "_count"
"""The column of a mirror without a key that says how often a row is contained."""

# Of a table with others' commits between ours this many are looked at first, then ten times as many, and so on.
_HISTORY: Final = 50
_TRIES: Final = 20

# What changes neither rows nor columns, as Delta calls it.
_HARMLESS: Final = frozenset({
    "ADD CONSTRAINT", "ANALYZE", "CLUSTER BY", "COMPUTE STATISTICS", "DROP CONSTRAINT", "OPTIMIZE", "REORG",
    "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE COLUMN METADATA", "UPGRADE PROTOCOL", "VACUUM END",
    "VACUUM START",
})  # fmt: skip

_APP: Final = "spark.databricks.delta.write.txnAppId"
_NUMBER: Final = "spark.databricks.delta.write.txnVersion"
_SAID: Final = "spark.databricks.delta.commitInfo.userMetadata"

# What Delta says to the one that came second.
_LOST: Final = re.compile(
    r"DELTA_CONCURRENT_|DELTA_PATH_EXISTS|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|PATH_ALREADY_EXISTS"
    r"|Concurrent(Append|Delete\w+|Transaction|Write)Exception|(Metadata|Protocol)ChangedException"
)
# What they say where a session lacks Delta's classes, or its catalog, or its SQL: all of a mirror's SQL is Delta's.
_NO_DELTA: Final = re.compile(
    "DATA_SOURCE_NOT_FOUND|DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG|PARSE_SYNTAX_ERROR"
)
# What Delta says of a log that lacks entries: a late commit follows versions of a table that was deleted.
_TORN: Final = re.compile("DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_LOG_FILE_NOT_FOUND")
_LEFT: Final = re.compile(r"_delta_log|\.?part-.*\.parquet(\.crc)?|_temporary|\..*")
_KEY_CONDITION: Final = InvalidUsageError.condition


@dataclass(frozen=True, slots=True)
class Position:
    """The position that the commit of a step records: all that the next step needs.

    Attributes
    ----------
    cut : Cut
        The log by its id and newest commits, and the upper up to which the table has its contents.
    number : int
        Of the step, from 0.
    planned_on : int
        The version of the table that it was planned on, up to which nobody else had changed it; -1 for the first.
    key : tuple of str
        The columns of the key; empty where the table counts rows.
    columns : str
        A digest of the names and types of the table's columns.
    attempt : str
        Another one for each attempt, which so knows its own.
    follows : str
        The attempt of the position that it was planned from; empty for the first, and for those of earlier versions.
    """

    cut: Cut
    number: int
    planned_on: int
    key: tuple[str, ...]
    columns: str
    attempt: str
    follows: str = ""

    def to_text(self) -> str:
        """Return it as the text that a commit records."""
        said = {
            "timely": "mirror", "version": 1, "number": self.number, "planned_on": self.planned_on,
            "key": list(self.key), "columns": self.columns, "attempt": self.attempt, "follows": self.follows,
            "cut": self.cut.to_json(),
        }  # fmt: skip
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> Position | None:
        """Read what a commit records; None if it is nothing of a mirror's.

        Raises
        ------
        LogFormatError
            If a later version of the library wrote it.

        Examples
        --------
        >>> print(Position.from_text("by hand"))
        None
        """
        try:
            said = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(said, Mapping) or said.get("timely") != "mirror":
            return None
        if said["version"] != 1:
            msg = f"could not read the position of a mirror: found version={said['version']!r}, known is 1"
            raise LogFormatError(msg, hint="upgrade spark-timely: a newer version wrote it")
        return cls(
            Cut.from_json(said["cut"]), int(said["number"]), int(said["planned_on"]), tuple(said["key"]),
            str(said["columns"]), str(said["attempt"]), str(said.get("follows", "")),
        )  # fmt: skip


How = Literal["created", "merged", "replaced", "nothing"]


@dataclass(frozen=True, slots=True)
class MirrorStep:
    """The result of a step.

    Attributes
    ----------
    how : str
        ``created``, ``merged``, ``replaced`` (the whole table, for the log has forgotten what changed, or has other
        columns), or ``nothing``.
    lower : Antichain or None
        The upper before it; None where there was no table.
    upper : Antichain
        The upper that the table has now.
    """

    how: How
    lower: Antichain | None
    upper: Antichain


@dataclass(frozen=True, slots=True)
class _Found:
    """The state of a table, by its own log.

    Attributes
    ----------
    version : int
        The newest.
    position : Position
        Of the newest step there.
    number : int
        The greatest number of a step that is known there.
    late : str
        What is wrong with it, where a step of a table that was there before committed late; empty if nothing is.
    """

    version: int
    position: Position
    number: int
    late: str


def mirror_to(
    spark: SparkSession,
    target: str | os.PathLike[str] | Log,
    table_path: str | os.PathLike[str],
    /,
    *,
    key: str | Sequence[str] | None = None,
    expiry: str | None = "7 days",
    accept_change: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Mirror:
    """Return what keeps a Delta table at the current contents of a collection log.

    Nothing is written before its `step`. Several may keep one table, on several machines: one of them makes each step,
    the others continue from there.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect, with Delta's SQL extension and catalog.
    target : path or Log
        A collection log.
    table_path : path or URL
        Of the table: a mirror of this very log, or nothing yet.
    key : str or sequence of str, optional
        Columns that no two rows of the contents share: then the table has the log's columns, a row for each key.
        Without a key it has each distinct row once, and in ``_count`` how often it is contained.
    expiry : str, optional
        How long the log keeps what the table does not have yet, from each step on. Beyond that, or with None, it may
        forget it: then the table is replaced whole.
    accept_change : str, optional
        The token of the newest change by another program that was accepted in the log. A table from before is refused
        for it, and is replaced whole where it is said.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs, of log and table. Spark itself writes with those of its session.

    Raises
    ------
    InvalidUsageError
        If the log is no collection, or has no such column; or the session cannot be copied.
    LogMissingError
        If there is no log.

    Examples
    --------
    ::

        mirror = spark_timely.mirror_to(spark, "/data/accounts", "/tables/accounts", key="id")
        mirror.step()  # once; or `for step in mirror.follow(): …`
        spark.table("delta.`/tables/accounts`").show()
    """
    place = normal_path(table_path)
    paths = [place] if isinstance(target, Log) else [place, normal_path(target)]
    options = checked_options(storage_options, *paths)
    log = (
        target
        if isinstance(target, Log)
        else open_log(paths[1], storage_options=own_options(paths[1], options) or None)
    )
    columns = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    own = own_options(place, options)
    return Mirror(spark, log, place, key=columns, expiry=expiry, accept_change=accept_change, storage_options=own)


class Mirror:
    """Keeps a Delta table at the contents of a log. Made by `mirror_to`.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    log : Log
    table_path : str
    key : tuple of str
        Empty: rows are counted.
    expiry, accept_change : str or None
    storage_options : mapping
        Of the table.
    """

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        table_path: str,
        *,
        key: Sequence[str] = (),
        expiry: str | None = "7 days",
        accept_change: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._accept = accept_change
        self.log, self.table_path, self.key, self._expiry = log, table_path, tuple(key), expiry
        self._attempt = f"mirror log {log.path!r} to {shown(table_path)}"
        self._check()
        self._storage = open_storage(table_path, storage_options or None)
        self._spark = spark if is_remote(spark) else spark.newSession()
        if is_remote(spark) and not hasattr(spark, "cloneSession"):
            msg = f"could not {self._attempt}: found a Spark Connect session that cannot be cloned"
            raise InvalidUsageError(msg, hint="use pyspark 4.1 or later, or a classic session")
        self._name = spark_root(spark, self._storage)
        self._lock = threading.Lock()
        # First steps whose files were found, or written by this process.
        self._found: set[str] = set()

    def __repr__(self) -> str:
        return f"Mirror({self.log.path!r}, {self.table_path!r}, key={list(self.key)!r})"

    def _check(self) -> None:
        log, names = self.log, self.log.schema.names
        if log.kind != "collection":
            msg = f"could not {self._attempt}: found a {log.kind} log"
            raise InvalidUsageError(
                msg, hint="mirror a collection log; messages are copied with replay, or with copy_to"
            )
        if same_place(log.path, self.table_path):
            msg = f"could not {self._attempt}: found the log itself as the table"
            raise InvalidUsageError(msg, hint="give the path of another table")
        unknown = [name for name in self.key if name not in names]
        if unknown or len(set(self.key)) < len(self.key):
            found = f"no column {unknown[0]!r}" if unknown else f"key={shown(list(self.key))}"
            msg = f"could not {self._attempt}: found {found}"
            raise InvalidUsageError(msg, hint=f"choose each column of the key once, among {shown(names)}")

    # Steps --------------------------------------------------------------------------------------------

    def step(self) -> MirrorStep:
        """Bring the table to the log's present upper; nothing happens where it is there already.

        Raises
        ------
        InvalidUsageError
            If there is another table in its place, or one with another key; two rows of the contents share a key; a
            column is or contains a map; or the session has no Delta.
        DataLossError
            If others have changed its rows, it was restored, or another log is in the place of its own.
        SchemaMismatchError
            If others have changed its columns.
        NegativeMultiplicityError
            If a row would be contained fewer than zero times.
        UpperMismatchError
            If others were first again and again.

        Notes
        -----
        Cost: the files of the log that may have changes between the two uppers are read, and the files of the table
        that have rows which change are written again, as by any MERGE. A table that is made, or replaced, is read and
        written whole.
        """
        with self._lock:
            for _ in range(_TRIES):
                self.log.refresh()
                done = self._try()
                if done is not None:
                    self._retain(done.upper)
                    return done
        msg = f"could not {self._attempt}: found that others were first {_TRIES} times"
        raise UpperMismatchError(msg, hint="let fewer processes keep one table, or call step again")

    def follow(self, *, poll_s: float = 1.0, timeout_s: float | None = None) -> Iterator[MirrorStep]:
        """Make steps as the log moves on, and yield each that did something; end when the log is complete.

        Parameters
        ----------
        poll_s : float
            Seconds between two looks.
        timeout_s : float, optional
            How long to follow; for ever unless given.
        """
        attempt = f"could not {self._attempt}"
        until = clock.monotonic() + seconds_of(attempt, "timeout_s", timeout_s, optional=True)
        seconds_of(attempt, "poll_s", poll_s)
        while True:
            done = self.step()
            if done.how != "nothing":
                yield done
            left = until - clock.monotonic()
            if not done.upper or not wait_until(self._passed(done.upper), timeout_s=left, poll_s=poll_s):
                return

    def _passed(self, upper: Antichain) -> Callable[[float], bool]:
        """Return what looks whether the log has another upper by now."""

        def look(_: float) -> bool:
            self.log.refresh()
            return self.log.frontier() != upper

        return look

    def position(self) -> Position | None:
        """Return how far the table is, by itself; None where there is none.

        Raises
        ------
        InvalidUsageError, DataLossError, SchemaMismatchError
            As of `step`.
        """
        found = self._look()
        if found is not None and found.late:
            self._refuse_late(found.late, "make a step, which replaces it whole")
        return None if found is None else found.position

    def _try(self) -> MirrorStep | None:
        """Make one attempt; None where somebody else was first."""
        found = self._look()
        # Of one snapshot with the files that are read: since never passes what the upper of a snapshot needs.
        cut = cut_of([self.log])
        upper, before = cut.frontier, None if found is None else found.position
        lower = None if before is None else before.cut.frontier
        if found is not None and found.late:
            _logger.warning(
                "could not continue the table %r: found %s: it is replaced whole — hint: it was deleted while a job of"
                " an earlier step wrote to it; jobs that write to it have the tag %r",
                self.table_path, found.late, self.tag,
            )  # fmt: skip
            lower = None
        # Its consumer knows of the change, or the table was refused.
        behind = before is not None and bool(other_accepted(self.log.core.accepted, before.cut.logs[0].commits))
        if lower is not None and ((lower == upper and not behind) or not lower.less_equal_frontier(upper)):
            # Where the table is further, this handle has not seen yet what another one has.
            return MirrorStep("nothing", lower, lower)
        number, planned_on = (0, -1) if found is None else (found.number + 1, found.version)
        follows = "" if before is None else before.attempt
        after = Position(cut, number, planned_on, self.key, self._columns(), uuid.uuid4().hex[:16], follows)
        how: How = "created"
        if before is not None:
            mergeable = (
                lower is not None and before.columns == after.columns and not behind and self._tells_changes(lower)
            )
            how = "merged" if mergeable else "replaced"
        error: Exception | None = None
        try:
            if how == "merged" and lower is not None:
                self._merge(lower, after)
            else:
                self._write(how, after)
            self._found.add(after.attempt)
        except Exception as raised:  # noqa: BLE001 - of Spark, of Py4J, of Connect: the table says what has happened
            error = raised
        now = self._look()
        if now is not None and now.position == after and not now.late:
            return MirrorStep(how, lower, upper)
        moved = (None if now is None else now.position) != before
        if error is None or moved or _LOST.search(str(error)):
            return None
        self._refuse(error)

    def _tells_changes(self, lower: Antichain) -> bool:
        """Whether the log still tells what changed from a frontier on."""
        minimum = self.log.domain.minimum
        return lower == self.log.domain.minimum_frontier or may_read(
            self.log.since(), needed_by_changes(lower, minimum)
        )

    def _write(self, how: How, after: Position) -> None:
        """Write the whole table, in one commit that records the position."""
        upper = after.cut.frontier
        rows = rows_between(self._spark, self.log, None, upper)
        refuse_maps(rows, self._attempt, InvalidUsageError)
        said = {"userMetadata": after.to_text(), "txnAppId": self._app(), "txnVersion": str(after.number)}
        writer = self._whole(rows, upper).write.format("delta").options(**said)
        with tagged(self._spark, self.tag):
            if how == "created":
                writer.mode("error").save(self._name)
            else:
                writer.mode("overwrite").option("overwriteSchema", "true").save(self._name)

    def _app(self) -> str:
        return f"timely-mirror {self.log.core.log_id}"

    def _columns(self) -> str:
        """Return the digest of the columns that the table of the log's present columns has."""
        shape = spark_schema(self.log.schema)
        fields = [(each.name, each.dataType.simpleString()) for each in shape.fields]
        return _digest(fields if self.key else [*fields, (COUNT, "bigint")])

    def _whole(self, rows: DataFrame, upper: Antichain) -> DataFrame:
        """Return the rows of the table for the sums of all updates: invariant 1."""
        names = self.log.schema.names
        attempt = f"{self._attempt} before {self.log.domain.render_frontier(upper)}"
        held = rows.withColumn(DIFF, F.expr(held_or_error(DIFF, attempt, [listed([name]) for name in names])))
        if not self.key:
            return held.withColumnRenamed(DIFF, COUNT)
        grouped = held.groupBy(*(quoted(name) for name in self.key)).agg(
            F.sum(DIFF).alias(DIFF), F.any_value(F.struct(*map(quoted, names))).alias("_row")
        )
        row = F.expr(f"CASE WHEN {DIFF} = 1 THEN _row ELSE {self._violated('_row', f'struct<{self._shape()}>')} END")
        return grouped.select(row.alias("_row")).select("_row.*")

    def _shape(self) -> str:
        """Return the fields of a row, as SQL writes a struct's type."""
        fields = spark_schema(self.log.schema).fields
        return ", ".join(f"{listed([each.name])}: {each.dataType.simpleString()}" for each in fields)

    def _violated(self, row: str, kind: str) -> str:
        """Return, in SQL, the failure of a key that two rows share."""
        keys = ", ".join(f"{row}.{listed([name])}" for name in self.key)
        begin = f"[{_KEY_CONDITION}] could not {self._attempt}: found two rows or more of key {list(self.key)!r}="
        end = " — hint: give a key that no two rows share at any time, or none: rows are counted then"
        text = f"concat({sql_text(begin)}, to_json(named_struct('key', struct({keys}))), {sql_text(end)})"
        return f"CAST(raise_error({text}) AS {kind})"

    # MERGE --------------------------------------------------------------------------------------------

    def _merge(self, lower: Antichain, after: Position) -> None:
        """Apply the changes between two uppers, in one commit that records the position."""
        said = {_APP: self._app(), _NUMBER: str(after.number), _SAID: after.to_text()}
        with self._stamping(said) as spark, tagged(spark, self.tag), StepViews(spark) as views:
            changes = rows_between(spark, self.log, lower, after.cut.frontier)
            source = views.add(self._by_key(changes) if self.key else changes)
            spark.sql(f"MERGE INTO delta.{listed([self._name])} AS t USING {source} AS s {self._clauses()}").collect()

    @contextmanager
    def _stamping(self, said: Mapping[str, str]) -> Iterator[SparkSession]:
        """Give a session whose commits record something (invariant 5).

        On Connect it is one for this alone, let go after it: as long as its process lives it would stay on the server,
        and the process would ask the server once more at its end, whether or not there still is one.
        """
        remote = is_remote(self._spark)
        spark = self._spark.cloneSession() if remote else self._spark  # type: ignore[attr-defined]  # of Connect's alone
        for name, value in said.items():
            spark.conf.set(name, value)
        try:
            yield spark
        finally:
            if remote:
                with suppress(Exception):  # a server that is gone has no sessions
                    spark.client.release_session()
                spark.client.close()
            else:
                for name in said:
                    spark.conf.unset(name)

    def _by_key(self, changes: DataFrame) -> DataFrame:
        """Return for each key that has changes how many rows come and go, and the row that comes."""
        row = f"struct({listed(self.log.schema.names)})"
        comes, goes = f"sum(IF({DIFF} > 0, {DIFF}, 0L))", f"sum(IF({DIFF} < 0, -{DIFF}, 0L))"
        grouped = changes.groupBy(*(quoted(name) for name in self.key)).agg(
            F.expr(comes).alias("_comes"), F.expr(goes).alias("_goes"),
            F.expr(f"any_value({row}) FILTER (WHERE {DIFF} > 0)").alias("_row"),
            F.expr(f"any_value({row})").alias("_any"),
        )  # fmt: skip
        checked = f"CASE WHEN _comes <= 1 AND _goes <= 1 THEN _comes ELSE {self._violated('_any', 'BIGINT')} END"
        return grouped.withColumn("_comes", F.expr(checked))

    def _clauses(self) -> str:
        names = self.log.schema.names
        on = " AND ".join(f"t.{listed([name])} <=> s.{listed([name])}" for name in self.key or names)
        if not self.key:
            own = listed(names)
            values = ", ".join(f"s.{listed([name])}" for name in names)
            total = f"(t.{COUNT} + s.{DIFF})"
            row = [f"s.{listed([name])}" for name in names]
            less, absent = (refused_sql(self._attempt, count, row) for count in (total, f"s.{DIFF}"))
            return (
                f"ON {on} WHEN MATCHED AND {total} = 0 THEN DELETE"
                f" WHEN MATCHED AND {total} > 0 THEN UPDATE SET t.{COUNT} = {total}"
                f" WHEN MATCHED THEN UPDATE SET t.{COUNT} = {less}"
                f" WHEN NOT MATCHED THEN INSERT ({own}, {COUNT})"
                f" VALUES ({values}, IF(s.{DIFF} > 0, s.{DIFF}, {absent}))"
            )
        others = [name for name in names if name not in self.key] or list(self.key[:1])
        moved = ", ".join(f"t.{listed([name])} = s._row.{listed([name])}" for name in others)
        first, kinds = listed([others[0]]), {each.name: each.dataType for each in spark_schema(self.log.schema).fields}
        twice = self._violated("s._row", kinds[others[0]].simpleString())
        head = names[0]
        absent = refused_sql(
            self._attempt, "-1", [f"s._any.{listed([name])}" for name in names], kinds[head].simpleString()
        )
        values = ", ".join(
            f"IF(s._goes = 0, s._row.{listed([name])}, {absent})" if name == head else f"s._row.{listed([name])}"
            for name in names
        )
        return (
            f"ON {on} WHEN MATCHED AND s._comes = 0 THEN DELETE"
            f" WHEN MATCHED AND s._goes = 1 THEN UPDATE SET {moved}"
            f" WHEN MATCHED THEN UPDATE SET t.{first} = {twice}"
            f" WHEN NOT MATCHED THEN INSERT ({listed(names)}) VALUES ({values})"
        )

    # What the table says ------------------------------------------------------------------------------

    def _look(self) -> _Found | None:
        """Return how far the table is; refuse one that is none of ours, or that others have changed (invariant 4)."""
        self._storage.forget()
        if not has_table(self._storage):
            # What a first step left that was killed is no reason to refuse the next.
            others = [name for name in self._storage.names() if not _LEFT.fullmatch(name)]
            if self._storage.local and os.path.islink(self.table_path) and not os.path.exists(self.table_path):
                behind = shown(os.readlink(self.table_path))
                msg = f"could not {self._attempt}: found a link to {behind}, where nothing is"
                raise InvalidUsageError(msg, hint="give a folder that is empty or not there, or make the one behind it")
            if others:
                msg = f"could not {self._attempt}: found {shown(others[:5])} in the folder, and no table"
                raise InvalidUsageError(msg, hint="give a folder that is empty or not there")
            return None
        commits = self._history()
        at = next(at for at, (_, _, position) in enumerate(commits) if position is not None)
        position = commits[at][2]
        assert position is not None
        foreign = [
            (version, operation)
            for version, operation, own in commits
            if own is None and version > position.planned_on and operation not in _HARMLESS
        ]
        if foreign:
            version, operation = foreign[0]
            msg = f"could not {self._attempt}: found version {version} of the table by {operation} of others"
            raise DataLossError(
                msg,
                hint="delete the table, the next step makes it again; let nobody else write to it",
                context={"path": self.table_path},
            )
        self._check_ours(position)
        number = max(own.number for _, _, own in commits if own is not None)
        return _Found(commits[0][0], position, number, self._follows(position, commits[at:]) or self._lacks(position))

    def _follows(self, position: Position, commits: Sequence[tuple[int, str, Position | None]]) -> str:
        """Return what is wrong with a position that was planned from one that this table does not have."""
        before = [own for _, _, own in commits if own is not None][1:]
        known = bool(before) or commits[-1][0] == 0
        if position.follows and known and (not before or before[0].attempt != position.follows):
            return f"step {position.number} of another table that was in its place"
        return ""

    def _lacks(self, position: Position) -> str:
        """Return which files of a first step are gone. Free but for the first look at one of others."""
        if position.number or position.attempt in self._found:
            return ""
        files = [unquote(path) for path in self._spark.read.format("delta").load(self._name).inputFiles()]
        there = set(self._storage.names())
        ends = [path.rsplit("/", 2)[1:] for path in files]  # some tables have their files in folders
        gone = [name for folder, name in ends if name not in there and not self._storage.exists(f"{folder}/{name}")]
        if gone:
            return f"{len(gone)} of {len(files)} files gone"
        self._found.add(position.attempt)
        return ""

    def _refuse_late(self, found: str, way: str) -> NoReturn:
        msg = f"could not {self._attempt}: found {found}"
        raise DataLossError(
            msg,
            hint="the table was deleted while a job of an earlier step wrote to it: end jobs that have the tag"
            f" {self.tag!r}, then {way}",
            context={"path": self.table_path, "job": self.tag},
        )

    def _history(self) -> list[tuple[int, str, Position | None]]:
        """Return the newest commits of the table, the newest first, back to where our newest one was planned."""
        most = _HISTORY
        while True:  # once, but where others have very many commits
            try:
                rows = self._spark.sql(f"DESCRIBE HISTORY delta.{listed([self._name])} LIMIT {most}").collect()
            except Exception as error:  # noqa: BLE001 - of Spark, of Py4J, of Connect
                self._refuse(error)
            found = [(int(row["version"]), str(row["operation"]), self._own(row)) for row in rows]
            ours = [own for _, _, own in found if own is not None]
            planned = ours[0].planned_on if ours else None
            if planned is not None and found[-1][0] <= planned + 1 and (ours[1:] or not ours[0].follows):
                return found
            if len(rows) < most:
                if planned is not None:
                    return found
                msg = f"could not {self._attempt}: found a table that is no mirror, or whose history is gone"
                raise InvalidUsageError(
                    msg, hint="give another path; or delete the table, if it was a mirror, and it is made again",
                    context={"path": self.table_path},
                )  # fmt: skip
            most *= 10

    def _own(self, row: Any) -> Position | None:  # noqa: ANN401 - pyspark's rows
        """Return the position that a commit records: of those alone that write rows, since others repeat the text."""
        if row["operation"] not in ("MERGE", "WRITE", "CREATE TABLE AS SELECT", "REPLACE TABLE AS SELECT"):
            return None
        return Position.from_text(row["userMetadata"])

    def _check_ours(self, position: Position) -> None:
        [entry] = position.cut.logs
        behind = other_accepted(self.log.core.accepted, entry.commits, self._accept)
        if entry.log_id == self.log.core.log_id and is_accepted(behind):
            msg = f"could not {self._attempt}: {describe_others(self.log.core, behind, 'the table was made from')}"
            raise DataLossError(
                msg,
                hint=f"have the table's rows replaced whole: mirror_to(…, accept_change={behind[ACCEPTED][1]!r})",
                context={"path": self.table_path},
            )
        position.cut.check_log(self.log, accept=self._accept)
        if position.key != self.key:
            msg = f"could not {self._attempt}: found a mirror with key={shown(list(position.key))}"
            raise InvalidUsageError(
                msg, hint="give that key; or delete the table, and it is made again", context={"path": self.table_path}
            )
        shape = self._spark.read.format("delta").load(self._name).schema
        if _digest([(each.name, each.dataType.simpleString()) for each in shape.fields]) != position.columns:
            msg = (
                f"could not {self._attempt}: found columns of the table that others have changed: {shown(shape.names)}"
            )
            raise SchemaMismatchError(
                msg,
                hint="delete the table, the next step makes it again; let nobody else change it",
                context={"path": self.table_path},
            )

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise what the job has said: our own error, where a row made it fail."""
        torn = _TORN.search(str(error))
        if torn is not None:
            found = f"a table's log that lacks entries ({torn.group()})"
            self._refuse_late(found, "delete the table, and the next step makes it again")
        missing = _NO_DELTA.search(str(error))
        if missing is not None:
            msg = f"could not {self._attempt}: found a Spark session without Delta ({missing.group()})"
            raise InvalidUsageError(
                msg,
                hint="start it by spark_timely.session(…, delta=True); a Connect server with delta-spark among"
                " spark.jars.packages, and with session_settings(delta=True)",
                context={"path": self.table_path},
            ) from error
        own = own_error(error)
        if own is None or type(own) not in (NegativeMultiplicityError, InvalidUsageError):
            raise error
        own.context["path"] = self.table_path
        raise own from error

    # What the log keeps -------------------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        """The name under which the log keeps what the table does not have yet."""
        return f"mirror {self._place}"

    @property
    def tag(self) -> str:
        """The tag of the jobs that write to the table, whichever process's."""
        return f"timely-mirror-{self._place}"

    @property
    def _place(self) -> str:
        return hashlib.sha256(self.table_path.encode()).hexdigest()[:12]

    def _retain(self, upper: Antichain) -> None:
        if self._expiry is None:
            return
        try:
            if upper:
                self.log.retain(self.consumer, upper, owner=self.consumer, expiry=self._expiry)
            elif self.consumer in self.log.retainers():
                self.log.release(self.consumer)
        except (LogFormatError, OwnershipError, SinceViolationError, StorageError) as error:
            # The table can be replaced whole.
            _logger.info("log %r does not keep what %s needs: %s", self.log.path, self.consumer, error)


def _digest(fields: Sequence[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
