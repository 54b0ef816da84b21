"""The Delta store: a handle on the table of a log, opened by delta-rs and then followed entry by entry.

`open_log` and `create_log` make a `DeltaStore`, the store (`base`) of each log on a disk or in an object store; its
`LogCore` reads and commits by it. `entries` has the text of an entry, `guard` what other programs changed.

What was found about delta-rs 1.6, and shapes this module:

 - App ids are compared only against commits after the handle's snapshot, and the numbers not at all.
   So a decision and its commit share one snapshot.
 - A handle does not know its own commit until it is updated.
 - Adding a column makes every commit from an older snapshot fail, whatever it appends, by the class of
   error that also stands for a lost race. A column that is there already is added without a complaint.
 - Removing a file twice is not noticed, not even across a rebase. So whatever removes files commits
   exclusively: exactly on top of its snapshot, or not at all.
 - Updating, and committing, cost time in proportion to the live files (2.5 µs each: 50 ms at 20,000), because
   the list of them is made again each time, and to the entries in the directory of the table's log (8 µs each).

So a table is opened by delta-rs, and from then on only the entries that come are read. Commits are written here too,
as delta-rs does it: on a local disk a complete file gets its name by a hard link, in an object store by a conditional
put, or fails because the name is taken. delta-rs commits where a table has features or properties that we do not know
to be harmless (`entries`), and where the place has no hard links and a single writer is promised.

The first entry of a table is what delta-rs writes, put here. In an object store each look is a round trip, so
there delta-rs opens copies of what the table's log has since its newest checkpoint, and a look is not repeated where
its answer is known.

Invariants
----------
1. Nothing moves the snapshot between a decision and its commit.
2. What is deleted from the table's log is older than a checkpoint by many versions, and goes in order. So
   where the entry of the snapshot still is what it was, no entry after it has come and gone; and one that was
   put after it before that was found has its place. Where it is not, everything is read again. In an object store
   what is deleted is also half an hour old, so an entry that was seen a minute ago is there, unless the log was put
   back or made again: before each commit it is looked at.
3. An entry that is empty, cut, not JSON or a copy of another is never taken for a commit: it is looked at again for
   some seconds, and then refused by name.
4. Where the entry behind the snapshot is missing while later ones are there, nothing is read past it, and nothing is
   put into its place: that is damage too. A handle that has read past it continues. Before a commit all names are
   looked at; on a look where they have changed, in an object store once a minute.
"""

from __future__ import annotations

import json
import math
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogDamagedError,
    LogFormatError,
    LogMissingError,
    StorageError,
    TimelyError,
    shown,
)
from spark_timely.log.files.format import FORMAT_VERSION, METADATA_KEY, LogFormat
from spark_timely.log.files.index import FileIndex, LiveFiles, index_adds, index_files
from spark_timely.log.files.parquet_reader import read_file, read_parts, read_progress
from spark_timely.log.machine.decide import MOST_ATTEMPTS, LostRaceError
from spark_timely.log.machine.judge import Evidence, Step
from spark_timely.log.machine.state import OPEN_STREAM
from spark_timely.log.store.base import App
from spark_timely.log.store.checkpoints import KEEP_VERSIONS, LOG_FILE, TableUpkeep, lost_checkpoint
from spark_timely.log.store.cloud import CloudStorage, open_storage
from spark_timely.log.store.delta_calls import DeltaTable, delta_call
from spark_timely.log.store.entries import (
    ELSEWHERE,
    Entry,
    check_whole,
    entry_path,
    marks,
    parse_entry,
    put_entry,
    read_entry,
    render_entry,
    signed,
    table_rules,
)
from spark_timely.log.store.guard import Guard, with_token
from spark_timely.log.store.scratch import (
    CHECKPOINT,
    LAST_CHECKPOINT,
    NO_HOOKS,
    SCRATCH_OPTIONS,
    MirroredTable,
    entry_of_change,
    mirrored_table,
    scratch_table,
    table_at,
)
from spark_timely.log.store.storage import (
    NO_LINKS,
    PROMISE_HINT,
    FileStorage,
    OtherPlaceError,
    check_place,
    is_promised,
    links_missing,
    plain,
)
from spark_timely.log.store.urls import delta_options
from spark_timely.masking import masked_logger
from spark_timely.time.text import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake.table import TableAlterer

    from spark_timely.log.machine.judge import ForeignChange, Judgement
    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.store.storage import TableStorage
    from spark_timely.time.antichain import BoolArray


Creation = Literal["made", "taken", "unclear"]
"""Which attempt made the table that is there: this one, surely another one, or one of them."""

# VACUUM without a number takes what nobody knows and is older than the retention of deleted files, also
# what a micro-batch under way has written. Each removed file stays that long in the checkpoints;
# docs/internals/decisions/01-delta.md says what that costs.
_KEPT_PROPERTY = "delta.deletedFileRetentionDuration"
_CONFIGURATION = {
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 1 hours",
    _KEPT_PROPERTY: "interval 1 days",
}


def create_table(
    storage: FileStorage | CloudStorage,
    form: LogFormat,
    first: Sequence[DataFile],
    storage_options: Mapping[str, str] | None = None,
) -> Creation:
    """Create the table of a log with its first files, in one commit, unless there is one.

    Parameters
    ----------
    storage : FileStorage or CloudStorage
        Where.
    form : LogFormat
    first : sequence of DataFile
        Written and flushed.
    storage_options : mapping, optional

    Returns
    -------
    Creation
        Whether this attempt made the table, surely another one did, or one of them.

    Raises
    ------
    StorageError
        If that could not be done. Unless `determinate`, it may have been done.
    """
    if not (storage.local and is_promised(storage_options)):
        return _put(storage, form, first)
    path, options = storage.uri, delta_options(storage_options)
    try:
        _create(path, form, first, options)
    except (DeltaError, OSError) as error:
        if links_missing(error):
            raise no_links(path, error) from error
        # Which kind of error tells that somebody was first differs by back end and by timing.
        if _exists(path, options):
            return _created_by(storage, first)
        raise _failed(path, error, determinate=False) from error
    storage.flush([entry_path(0)])
    return "made"


def _put(storage: FileStorage | CloudStorage, form: LogFormat, first: Sequence[DataFile]) -> Creation:
    """Create the table by one entry that appears whole, and is flushed."""
    path = storage.uri
    try:
        content = _first_entry(path, form, first)
        if not isinstance(storage, FileStorage):
            storage.check_excludes(first[0].path)
        else:
            os.makedirs(storage.full("_delta_log"), exist_ok=True)
            storage.flush_place()
    except (DeltaError, OSError) as error:
        raise _failed(path, error, determinate=True) from error
    try:
        made = put_entry(storage, 0, content)
    except OSError as error:
        if error.errno in NO_LINKS:
            raise no_links(path, error) from error
        raise _failed(path, error, determinate=False) from error
    if not made:
        return "taken"
    try:
        names = storage.names("_delta_log")
    except StorageError:
        return "unclear"  # it is there: a caller that took this for a failure would delete what it names
    # Stopped for so long that another's table came, and its first entry was tidied away behind a checkpoint?
    return "unclear" if any(CHECKPOINT.fullmatch(name) for name in names) else "made"


def _first_entry(path: str, form: LogFormat, first: Sequence[DataFile]) -> bytes:
    with delta_call(path), scratch_table() as folder:
        _create(str(folder), form, first, SCRATCH_OPTIONS)
        actions = [json.loads(line) for line in (folder / entry_path(0)).read_bytes().splitlines()]
    for action in actions:  # a few
        if "commitInfo" in action:
            action["commitInfo"].get("operationParameters", {})["location"] = path
    return signed("\n".join(map(json.dumps, actions)).encode(), 0)


def _failed(path: str, error: Exception, *, determinate: bool) -> StorageError:
    return StorageError(
        f"could not create log {path!r}: found {plain(error)}",
        hint="check the path and the permissions, then try again",
        context={"path": path},
        determinate=determinate,
    )


def _create(path: str, form: LogFormat, first: Sequence[DataFile], options: dict[str, str] | None) -> None:
    with delta_call(path):
        create_table_with_add_actions(
            path,
            Schema.from_arrow(form.table_schema),
            [add_action(file, data_change=True) for file in first],
            mode="error",
            partition_by=["_event"],
            configuration=_CONFIGURATION,
            storage_options=options,
            # No retries: where somebody else was first, delta-rs 1.6 would retry as version 1, and succeed.
            commit_properties=CommitProperties(app_transactions=[Transaction("timely/#open", 0)], max_commit_retries=0),
        )


def no_links(path: str, error: Exception) -> StorageError:
    """Return the error for a file system without hard links, on which nothing was committed."""
    return StorageError(
        f"could not commit to log {path!r}: found a file system without hard links, by which a commit takes its name"
        f" only if nobody else has it: {plain(error)}",
        hint=f"write to another file system; {PROMISE_HINT}",
        context={"path": path, "option": "singleWriter"},
        determinate=True,
    )


def _exists(path: str, options: dict[str, str] | None) -> bool:
    try:
        with delta_call(path):
            return bool(DeltaTable.is_deltatable(path, storage_options=options))
    except (DeltaError, OSError):
        return False


def _created_by(storage: TableStorage, first: Sequence[DataFile]) -> Creation:
    """Tell whose the table is that is there after an attempt that reported an error, by its first entry."""
    try:
        entry = read_entry(storage, 0)
    except (TimelyError, ValueError):
        return "unclear"
    if entry is None:  # tidied away since, behind a checkpoint
        return "unclear"
    named = {add["path"] for add in entry.adds}
    return "made" if first and all(file.path in named for file in first) else "taken"


def add_action(file: DataFile, *, data_change: bool) -> AddAction:
    """Return a file as delta-rs takes it."""
    now = int(time.time() * 1000)
    return AddAction(file.path, file.size_bytes, {"_event": file.event}, now, data_change, file.stats)


logger = masked_logger(__name__)

NO_LOG_HINT = (
    "check the path, or wait for the first micro-batch of the capture that makes the log; create_log makes one at once"
)

_REFUSED_FEATURES = {
    "columnMapping": "column mapping",
    "typeWidening": "type widening",
    "typeWidening-preview": "type widening",
}
# Writer features that delta-rs 1.6 commits to (tried). A commit to a table with any other fails, and
# says so by the class of error that also stands for a lost race.
_WRITTEN_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
# A handle that has not looked for this long opens the table again: others clean up by age, an hour at the least,
# and not in order.
_LONG_S = 1200.0
_OPEN_TRIES = 3
# Where a look is a journey, an entry that was seen so lately is known to be there still: see invariant 2.
_SEEN_S = 60.0
# By how much the clock of a disk may be behind.
_TICK_NS = 50_000_000
# Seconds between looks at an entry that cannot be understood: somebody may be writing it in its place.
LOOKS_S = (0.1, 0.2, 0.4, 0.8, 1.6)


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def looks(pause: Callable[[float], None]) -> Iterator[bool]:
    """Yield once per look at what somebody may be writing, and whether it is the last; pause in between."""
    for seconds in LOOKS_S:
        yield False
        pause(seconds)
    yield True


class DeltaStore:
    """A handle on the Delta table of a log.

    Parameters
    ----------
    path : str
        As `spark_timely.log.store.storage.normal_path` gives it.
    storage_options : mapping, optional
        Passed on to delta-rs.
    pause : callable, optional
        Waits for the given seconds, between looks at an entry that cannot be understood.

    Attributes
    ----------
    path, table_id : str
        Where the table is, and its identity.
    storage : FileStorage or CloudStorage
        Access to its files.
    storage_options : dict
        As they were given.
    format : LogFormat
        Format of the log, as of the snapshot.
    live : LiveFiles
        The live files of the snapshot.
    version : int
        Table version of the snapshot.
    generation : int
        How often everything was read again: versions mean something else after that.

    Raises
    ------
    LogMissingError
        If there is no table, or one that is no log.
    LogFormatError
        If the log is of a newer version, uses table features that cannot be read, or has files outside of its folder.
    LogDamagedError
        If an entry of the table's log is empty, cut, not JSON or a copy of another, or missing between others.
    StorageError
        If the storage cannot be reached.
    """

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.path = path
        self.storage_options = dict(storage_options or {})
        self.options = delta_options(storage_options)
        self._pause = pause or _pause
        self.generation = 0
        self.storage = open_storage(path, storage_options)
        # Where the place lacks links and a single writer is promised, delta-rs knows what to do.
        self._links = not (self.storage.local and is_promised(storage_options))
        self._looked_at = time.time()
        # When the entry of the snapshot was last seen; and where our own entry is that the snapshot has not.
        self._seen = (-math.inf, -math.inf)
        self._landed: int | None = None
        # As the names were when no entry behind the snapshot was missing.
        self._whole: tuple[Any, ...] | None = None
        self._upkeep = TableUpkeep(self.storage, self._opened_to_write)
        self._guard = Guard(path, self._evidence())
        self._load(self._opened())

    def __reduce__(self) -> tuple[object, ...]:
        return DeltaStore, (self.path, self.storage_options)

    @property
    def append_only(self) -> bool:
        """Whether somebody set `delta.appendOnly`, which forbids to replace files of data."""
        return str(self._configuration.get("delta.appendOnly", "false")).lower() == "true"

    def _opened(self) -> DeltaTable:
        """Open the table as `_open` does, and say which checkpoint is missing where that is why it cannot be opened."""
        try:
            return self._open()
        except (LogMissingError, StorageError) as error:
            # What the store itself said is said already, and nobody may be there.
            known = isinstance(error, LogDamagedError) or "store" in error.context
            lost = None if known else self._lost_checkpoint()
            if lost is None:
                raise
            file, found = lost
            msg = f"could not open log {self.path!r}: found {found}"
            raise LogDamagedError(
                msg,
                hint="restore the checkpoint. Where the entries of all versions are there, `spark-timely repair LOG`"
                f" deletes {LAST_CHECKPOINT!r}, which is enough; in a cloud store delete it yourself",
                context={"path": self.path, "file": file},
                determinate=True,
            ) from (error.__cause__ or error)

    def _lost_checkpoint(self) -> tuple[str, str] | None:
        try:
            return lost_checkpoint(self.storage)
        except StorageError:
            return None  # the storage cannot be reached

    def _open(self) -> DeltaTable:
        """Open the table by delta-rs; look again where an entry cannot be understood."""
        tries = 0
        cause: Exception | None = None
        for _ in looks(self._pause):
            while True:  # at most `_OPEN_TRIES` times
                tries += 1
                try:
                    table = self._read_table()
                except TableNotFoundError as error:
                    msg = f"could not open log {self.path!r}: found no Delta table"
                    raise LogMissingError(
                        msg,
                        hint=NO_LOG_HINT,
                        context={"path": self.path},
                    ) from error
                except (DeltaError, OSError) as error:
                    if _is_feature_error(str(error)):
                        raise self._features(str(error)) from error
                    cause, damage = error, self._damage()
                    if damage is None and tries < _OPEN_TRIES:
                        # An entry that was listed may have been deleted since, behind a newer checkpoint.
                        logger.debug("log %r: opened again after %s", self.path, error)
                        continue
                else:
                    damage = self._damage(table.version())
                    if damage is None:
                        return table
                break
            if damage is None:
                break
        if damage is not None:
            raise self._damaged(*damage) from cause
        raise _unreadable(self.path, "open", cause or OSError("nothing")) from cause

    def _read_table(self) -> DeltaTable:
        if self.storage.local:
            return DeltaTable(self.path, storage_options=self.options)
        self.storage.forget()
        return mirrored_table(self.storage)

    def _opened_to_write(self) -> DeltaTable:
        """Open the table so that delta-rs can write to it."""
        if self.storage.local:
            return self._opened()
        return DeltaTable(self.path, storage_options=self.options)

    def _damaged(self, path: str, found: str) -> LogDamagedError:
        version = _version_of(path)
        return LogDamagedError(
            f"could not open log {self.path!r}: found entry {path!r} of the table's log broken: version={version} is"
            f" {found}, in {len(LOOKS_S) + 1} looks",
            hint="see what `spark-timely repair LOG` says about it: it shows what is lost before it changes anything"
            if self.storage.local
            else "restore the object by its versions: entries are put there whole or not at all",
            context={"path": self.path, "file": path, "version": version},
            determinate=True,
        )

    def _damage(self, opened: int | None = None) -> tuple[str, str] | None:
        """Look for a file of the table's log that cannot be understood; return its path and what is wrong.

        Parameters
        ----------
        opened : int, optional
            The version that delta-rs could open. Then it has read all of it, and takes only an entry that is empty
            or lacks whole lines for a commit: lines are counted, and the newest entry is read. A few hundred small
            files.
        """
        if opened is not None and not self.storage.local:
            return None  # a put is all or nothing there
        try:
            names = [n for n in self.storage.names("_delta_log") if LOG_FILE.fullmatch(n) and not n.endswith(".crc")]
            newest = max((n[:20] for n in names if CHECKPOINT.fullmatch(n)), default="")
            for name in names:
                if name[:20] < newest or (opened is not None and name.endswith(".parquet")):
                    continue
                path = f"_delta_log/{name}"
                found = self._wrong(path, whole=opened is None or int(name[:20]) == opened)
                if found is not None:
                    return path, found
            return self._gap(names, int(newest) if newest else None)
        except StorageError as error:
            logger.debug("log %r: its table log cannot be looked through: %s", self.path, error)
        return None

    def _gap(self, names: Sequence[str], behind: int | None) -> tuple[str, str] | None:
        """Return the first entry behind a version that is missing while later ones are there: its path, and words.

        Without a version behind the first entry that is there.
        """
        versions = sorted(_version_of(name) for name in names if name.endswith(".json") and LOG_FILE.fullmatch(name))
        before = behind
        for version in versions:
            for number in range(version if before is None else before + 1, version):
                path = entry_path(number)
                # A list that is made while entries come need not have all of them.
                if not self.storage.exists(path):
                    return path, f"missing, and version={version} is there"
            before = version if before is None else max(before, version)
        return None

    def _gap_behind(self) -> tuple[str, str] | None:
        """Return what is missing behind the snapshot while later entries are there; None if nothing is."""
        mark = self._names_mark()
        found = self._gap(self.storage.names("_delta_log", after=f"{self.version:020d}"), self.version)
        if found is None:
            self._whole = mark
        return found

    def _refuse_gap(self) -> bool:
        """Refuse to continue where an entry behind the snapshot is missing while later ones are there (invariant 4).

        Returns
        -------
        bool
            Whether one was missing that came meanwhile, or everything is to be read again.

        Raises
        ------
        LogDamagedError
            If it stays away.
        """
        found, again = None, False
        for _ in looks(self._pause):
            found = self._gap_behind()
            if found is None:
                return again
            if not self._is_there(surely=True):
                return True  # tidied away, or another table
            again = True
        assert found is not None
        raise self._damaged(*found)

    def _names_mark(self) -> tuple[Any, ...] | None:
        """Return what changes where entries may be missing behind the snapshot; None where they may be.

        On a disk it changes with the snapshot and with the names beside its entry; in an object store, where a look is
        a journey, a minute after the last one.
        """
        if not self.storage.local:
            now, (seen,) = time.monotonic(), self._whole or (-math.inf,)
            return (now if now - seen > _SEEN_S else seen,)
        found = self.storage.mark("_delta_log")
        # A folder that changes twice within a tick of the clock looks the same after both.
        settled = found is not None and time.time_ns() - int(str(found[-1])) > _TICK_NS
        return (self.version, *found) if found is not None and settled else None

    def _may_have_gap(self) -> bool:
        """Return whether names may have changed since no entry behind the snapshot was missing."""
        mark = self._names_mark()
        return mark is None or mark != self._whole

    def _wrong(self, path: str, *, whole: bool) -> str | None:
        """Return what is wrong with a file of the table's log; unless `whole`, its lines are only counted."""
        try:
            content = self.storage.read(path)
        except DataLossError:
            return None  # deleted since
        try:
            if path.endswith(".parquet"):
                pq.read_metadata(pa.BufferReader(content))
            elif whole:
                parse_entry(content.to_pybytes(), _version_of(path))
            else:
                check_whole(content.to_pybytes(), _version_of(path))
        except (ValueError, LookupError, TypeError, OSError, pa.ArrowException) as error:
            return plain(error)
        return None

    def _entry(self, version: int) -> Entry | None:
        """Return the entry of a version, None if there is none; look again where it cannot be understood.

        Raises
        ------
        LogDamagedError
            If it stays so.
        """
        for _ in looks(self._pause):
            try:
                return read_entry(self.storage, version)
            except (ValueError, LookupError, TypeError) as error:
                cause = error
        raise self._damaged(entry_path(version), plain(cause)) from cause

    def _features(self, found: str) -> LogFormatError:
        hint = "rewrite the table without the feature: a log is a plain Delta table"
        return _refused(self.path, f"table features that cannot be read: {shown(found)}", hint)

    def _load(self, table: DeltaTable) -> None:
        """Take everything from a handle of delta-rs: schema, format, features, files."""
        # What it holds per file is needed no more where commits are written here.
        self._table: DeltaTable | None = None if self._links else table
        self.version = table.version()
        self._newest_entry, self._next_entry = entry_path(self.version), entry_path(self.version + 1)
        self.generation += 1
        self._guard.forget()
        self._upkeep.forget(table.checkpoint if isinstance(table, MirroredTable) else None)
        protocol = table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        refused = sorted({_REFUSED_FEATURES[f] for f in features if f in _REFUSED_FEATURES})
        metadata = table.metadata()
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            refused.append("column mapping")
        if refused:
            raise self._features(", ".join(dict.fromkeys(refused)))
        self._rules = table_rules(
            reader=protocol.min_reader_version,
            writer=protocol.min_writer_version,
            features=features,
            properties=metadata.configuration,
            schema_json=table.schema().to_json(),
        )
        known = set(protocol.writer_features or ()) <= _WRITTEN_FEATURES
        self._writable = known and protocol.min_writer_version in (1, 2, 3, 4, 5, 7)
        self.table_id = str(metadata.id)
        self._schema = table.schema()
        self._configuration = dict(metadata.configuration)
        event = next((f for f in self._schema.fields if f.name == "_event"), None)
        arrow = pa.schema(self._schema.to_arrow())
        self.format = LogFormat.from_table(arrow, event.metadata if event is not None else {}, self.path)
        if list(metadata.partition_columns) != ["_event"]:
            hint = "restore the table: a log is partitioned by _event"
            raise _refused(self.path, f"partition columns={metadata.partition_columns!r}", hint)
        listing = pa.table(table.get_add_actions())
        elsewhere = listing["path"].filter(pc.match_substring_regex(listing["path"], ELSEWHERE.pattern))
        self._refuse_elsewhere(elsewhere.slice(0, 1).to_pylist())
        if "deletionVectors" in features:
            self._refuse_vectors(table)
        self.live = LiveFiles(self.format.domain.arity)
        self.live.add(index_files(self.format, listing))
        self._mark = self._read_mark()
        self._landed = None
        self._whole = None if self.storage.local else self._names_mark()

    def _read_mark(self) -> tuple[object, ...] | None:
        """Return the mark of the entry of the snapshot, which was just read."""
        self._seen = time.time(), time.monotonic()
        found = self.storage.known_mark(self._newest_entry) or self.storage.mark(self._newest_entry)
        return None if found is None else (self.version, *found)

    def _entry_mark(self) -> tuple[object, ...] | None:
        """Return what tells the entry of the snapshot's version from any other file in its place; None: none there."""
        now = time.time(), time.monotonic()
        found = self.storage.mark(self._newest_entry)
        if found is None:
            return None
        self._seen = now
        return (self.version, *found)

    def _is_there(self, *, surely: bool = False) -> bool:
        """Whether the entry of the snapshot still is what it was; where a look is a journey, or was a minute ago.

        `surely` is for a writer that commits behind it: a log that was put back a moment ago must be noticed too.
        """
        if not surely and not self.storage.local and self._mark is not None and self._seen_lately():
            return True
        found = self._mark is not None and self._entry_mark() == self._mark
        if not found:
            self._seen = (-math.inf, -math.inf)
        return found

    def _seen_lately(self) -> bool:
        # By both clocks: one may be put back, the other stands while the machine sleeps.
        ago = [now - seen for now, seen in zip((time.time(), time.monotonic()), self._seen, strict=True)]
        return min(ago) >= 0 and max(ago) < _SEEN_S

    def check_writable(self) -> None:
        """Refuse a place without a promise, and features that delta-rs cannot commit to. Free where all are known.

        Raises
        ------
        InvalidOptionError
            If the log is on a volume, and nobody promised a single writer.
        LogFormatError
        StorageError
            If the log is in a store without conditional puts, and nobody promised a single writer.
        """
        check_place(self.path, self.options)
        if isinstance(self.storage, CloudStorage) and not self.storage.check_excludes(self._newest_entry):
            self._mark = ()  # tidied away, or more: everything is read again before the commit
        if self._rules.refused:
            hint = "drop it (ALTER TABLE … DROP CONSTRAINT, or the column), or capture into another log"
            found = f"{', '.join(self._rules.refused)}, unknown to those who write"
            raise _refused(self.path, found, hint, attempt="write")
        if self._writable:
            return
        try:
            # A newer delta-rs may know more features: it is asked, by a merge of no files at all.
            table = self._opened_to_write()
            with delta_call(self.path):
                table.optimize.compact(partition_filters=[("_event", "=", "none")])
        except CommitFailedError as error:
            if _is_unwritable(str(error)):
                raise self._unwritable(str(error)) from error
        except (DeltaError, OSError) as error:
            logger.debug("log %r: whether it can be written is left to the commit: %s", self.path, error)
        else:
            self._writable = True

    def _unwritable(self, found: str) -> LogFormatError:
        hint = (
            "drop the feature (ALTER TABLE … DROP FEATURE), or capture into another log: a log is a plain Delta table"
        )
        return _refused(self.path, f"table features that cannot be written: {shown(found)}", hint, attempt="write")

    def _refuse_elsewhere(self, paths: Sequence[str]) -> None:
        """Refuse files outside of the table, the first of which are given: a vacuum knows nothing of who else has them.

        Raises
        ------
        LogFormatError
        """
        if paths:
            hint = "read the log that has it, or copy that one's folder: a shallow clone has no files of its own"
            raise _refused(self.path, f"file {shown(paths[0])}, which is outside of its folder", hint, file=paths[0])

    def _refuse_vectors(self, table: DeltaTable) -> None:
        vectors = pa.table(table.deletion_vectors())
        if vectors.num_rows:
            hint = (
                "restore the table to the version before rows were deleted or changed. Where none was, purge the"
                " vectors: REORG TABLE … APPLY (PURGE), and set delta.enableDeletionVectors=false"
            )
            raise _refused(self.path, f"deletion vectors on {vectors.num_rows} files", hint)

    def refresh(self, *, after_put: bool = False) -> bool:
        """Move the snapshot to the newest version; return whether it moved."""
        before, now = self.version, time.time()
        if not after_put:
            self._landed = None
        try:
            whole = abs(now - self._looked_at) < _LONG_S and self._follow()
        except (ValueError, LookupError, TypeError) as error:
            # Statistics that are not understood: delta-rs may.
            logger.debug("log %r: opened again after %s", self.path, error)
            whole = False
        if not whole:
            self._reload()
        self._looked_at = now
        return self.version != before

    def _follow(self) -> bool:
        """Take in the entries behind the snapshot; return False where that is not enough."""
        local, before, mark = self.storage.local, self._newest_entry, self._mark
        checked = True
        while True:
            ours = self._landed is not None and self.version < self._landed
            if self._landed is not None and not ours:
                # What was put there a moment ago was a look too: nothing was behind it.
                self._landed = None
                break
            entry = self._own_entry(self.version + 1) if ours else self._entry(self.version + 1)
            # After that look, whether it found one or not (invariant 2).
            if local and not self._is_there():
                return False
            if entry is None:
                if self._may_have_gap() and self._refuse_gap():
                    if not self._is_there():
                        return False
                    continue
                checked = local or (checked and self._is_there())
                break
            if entry.changes_table:
                return False
            self._refuse_elsewhere([add["path"] for add in entry.adds if ELSEWHERE.match(add["path"])])
            checked = checked and (local or ours)
            added = index_adds(self.format, entry.adds)
            self._guard.follow(self.format, Step(self.version + 1, entry, added), self.live)
            self.live.remove(entry.removes)
            self.live.add(added)
            self.version += 1
            self._newest_entry, self._next_entry = self._next_entry, entry_path(self.version + 1)
            self._mark = self._read_mark()
        if checked or local:
            return checked
        # One look for all of them: the first of what was read is as it was, so nothing behind it had come and gone.
        found = self.storage.mark(before)
        return found is not None and mark is not None and found == mark[1:]

    def foreign_changes(self) -> tuple[ForeignChange, ...]:
        """Return what other programs changed in the log, and nobody undid, as of the snapshot."""
        return self.judgement().open

    def judgement(self) -> Judgement:
        """Return what other programs changed in the log, with what it takes to put progress back."""
        return with_token(self._guard.look(self.format, self.version, self.live), self.table_id)

    def look_into(self, chosen: Callable[[FileIndex], BoolArray] | None = None) -> None:
        """Look into files of messages that others made, before the first row of one is handed out."""
        self._guard.look_into(self.format, self.version, self.live, chosen)

    def _judged(self) -> tuple[int | None, tuple[int, ...]]:
        """Return up to which version nothing is open, and which of them made files into which nobody has looked.

        None if that is not known: no commit hangs on it.
        """
        try:
            return self._guard.judged(self.format, self.version, self.live)
        except (TimelyError, DeltaError, OSError, ValueError, pa.ArrowException) as error:
            logger.debug("log %r: a commit does not say what was judged: %s", self.path, error)
            return None, ()

    def _evidence(self) -> Evidence:
        return Evidence(self._rows_of, self._step, self._files_at, self._keys_of)

    def _step(self, version: int) -> Step | None:
        entry = self._entry(version)
        return None if entry is None else Step(version, entry, index_adds(self.format, entry.adds))

    def _files_at(self, version: int) -> list[FileIndex] | None:
        """Return the files that were live at an earlier version; None if that is no longer known."""
        for tries in range(_OPEN_TRIES):
            names = set(self.storage.names("_delta_log"))
            checkpoints = {int(name[:20]) for name in names if CHECKPOINT.fullmatch(name)}
            first = max((each for each in checkpoints if each <= version), default=-1)
            needed = {f"{each:020d}.json" for each in range(first + 1, version + 1)}
            if not needed <= names:
                return None  # cleaned up
            try:
                with table_at(self.storage, max(first, 0), version) as (table, _):
                    return [index_files(self.format, pa.table(table.get_add_actions()))]
            except (DeltaError, OSError, DataLossError) as error:
                if tries < _OPEN_TRIES - 1:
                    continue  # cleaned up meanwhile: the next look tells
                # It is there: to pass over it would be to believe the log.
                raise _unreadable(self.path, "read", error, version=version) from error
        raise AssertionError

    def _rows_of(self, path: str, vector: str, event: str) -> pa.Table | None:
        """Return the rows of a file of the table, live or not; None if it is gone, or a vector masks some."""
        if vector:
            return None
        try:
            if event == "message":
                return read_file(self.storage, path, self.format.data_schema)
            return read_progress(self.storage, path, self.format.progress_schema)
        except DataLossError:
            return None

    def _keys_of(self, path: str) -> Iterator[pa.Table]:
        """Return stream, number and times of the messages in a file of the table, live or not, part by part."""
        names = ("_stream", "_seq", *self.format.domain.columns)
        schema = pa.schema([self.format.data_schema.field(name) for name in names])
        return read_parts(self.storage, path, schema)

    def _own_entry(self, version: int) -> Entry | None:
        """Return an entry that was read or put here a moment ago."""
        content = self.storage.kept(entry_path(version))
        return self._entry(version) if content is None else parse_entry(content, version)

    def _reload(self) -> None:
        self._landed = None
        table = self._opened()
        if str(table.metadata().id) != self.table_id:
            msg = f"could not read log {self.path!r}: found another table in its place"
            raise LogMissingError(
                msg, hint="open the log again: it was deleted and created again", context={"path": self.path}
            )
        if (table.version(), self._mark) != (self.version, None):
            self._load(table)

    def has_news(self) -> bool:
        """Return whether there is a later version on a local disk, however far behind the snapshot is.

        The version after the snapshot's may have been tidied away: then the snapshot's own entry was before. Or it is
        missing: the next look says so. Three looks at one file each.
        """
        if not self.storage.local:
            return False
        if self.storage.exists(self._next_entry) or self._entry_mark() != self._mark:
            return True
        return self._may_have_gap() and self._gap_behind() is not None

    def transact(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        *,
        removes: Sequence[DataFile] = (),
        data_change: bool = True,
        exclusive: bool = False,
    ) -> None:
        """Commit from the snapshot."""
        if removes and not exclusive:
            msg = "could not commit: found removes without exclusive=True"
            raise InvalidUsageError(msg)
        try:
            self._raise_format()
            if self._own:
                self._put(adds, apps, removes, data_change=data_change, exclusive=exclusive)
            else:
                self._commit(adds, apps, removes, data_change=data_change, exclusive=exclusive)
        except (DeltaError, OSError) as error:
            raise self._failed(error) from error

    @property
    def _own(self) -> bool:
        """Whether entries are written here."""
        return self._links and self._writable and self._rules.harmless and self._mark is not None

    def _failed(self, error: Exception) -> TimelyError:
        """Return what the error of a commit means."""
        lost = isinstance(error, CommitFailedError)
        if lost and _is_unwritable(str(error)):  # found before anything is written
            return self._unwritable(str(error))
        if links_missing(error):
            return no_links(self.path, error)
        if lost:
            return self._lost(found=plain(error))
        return StorageError(
            f"could not commit to log {self.path!r} at version={self.version}: found {plain(error)}",
            hint="read the log to see whether it happened, then try again",
            context={"path": self.path},
            determinate=False,
        )

    def _lost(self, *, found: str, determinate: bool = False) -> LostRaceError:
        return LostRaceError(
            f"could not commit to log {self.path!r} at version={self.version}: found {found}",
            hint="refresh and decide again",
            context={"path": self.path},
            determinate=determinate,
        )

    def _put(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        removes: Sequence[DataFile],
        *,
        data_change: bool,
        exclusive: bool,
    ) -> None:
        """Write the entry here: flat, however many files are live."""
        judged, unlooked = self._judged()

        def render(version: int) -> bytes:
            return render_entry(
                adds,
                removes,
                dict(apps),
                data_change=data_change,
                read_version=self.version,
                version=version,
                judged=judged,
                unlooked=unlooked,
            )

        ids = {app for app, _ in apps}
        self._put_behind(render, lambda other: exclusive or other.changes_table or bool(other.apps & ids), adds)

    def _put_behind(
        self, render: Callable[[int], bytes], conflicts: Callable[[Entry], bool], adds: Sequence[DataFile] = ()
    ) -> None:
        """Put an entry behind the snapshot, and behind those that others put there if they do not conflict.

        It is rendered for each version that it is tried at, because it says which one that is. On a disk it is put into
        the folder that has the snapshot's entry and the files that are added: none of a log that is swapped meanwhile.
        """
        try:
            there = self._is_there(surely=True)
            if there and (self.storage.local or self._may_have_gap()):
                self._refuse_gap()
        except LogDamagedError:
            raise
        except StorageError as error:  # nothing was put
            raise StorageError(error.message, hint=error.hint, context=error.context, determinate=True) from error
        if not there:
            raise self._lost(found="another entry in place of the snapshot's", determinate=True)
        beside: dict[str, tuple[object, ...] | None] | None = None
        if self.storage.local and self._mark:
            beside = {self._newest_entry: self._mark[1:], **{file.path: None for file in adds}}
        for version in range(self.version + 1, self.version + 2 + MOST_ATTEMPTS):
            try:
                done = put_entry(self.storage, version, render(version), beside)
            except OtherPlaceError as error:
                raise self._lost(found=f"another folder in its place: {error}", determinate=True) from error
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                self._links = False
                raise self._lost(found="no hard links") from error
            if done:
                try:
                    # In a store what is deleted is half an hour old: an entry seen before the put was there after it.
                    # On a disk it was put beside the snapshot's entry, or not at all.
                    seen = beside is not None or (not self.storage.local and self._seen_lately())
                    behind = seen or self._entry_mark() == self._mark
                except StorageError as error:
                    # It has its name: taken for a refusal, this would delete files of the log.
                    raise OSError(error.message) from error
                if not behind:
                    # Stopped for so long that the versions behind were tidied away: was it put in the past?
                    msg = "entries that were tidied away meanwhile"
                    raise OSError(msg)
                self._landed = None if self.storage.local else version
                return
            other = self._entry(version)
            if other is None or conflicts(other):
                raise self._lost(found=f"version={version} taken")
        raise self._lost(found="that others commit all the time")

    def _commit(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        removes: Sequence[DataFile],
        *,
        data_change: bool,
        exclusive: bool,
    ) -> None:
        """Let delta-rs write the entry."""
        self._refuse_gap()
        table = self._handle()
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [add_action(file, data_change=data_change) for file in adds]
        actions += [RemoveAction(f.path, data_change, now, f.size_bytes, {"_event": f.event}) for f in removes]
        said = marks([file.path for file in adds], [file.path for file in removes], *self._judged())
        with delta_call(self.path):
            table.create_write_transaction(
                actions,
                "append",
                self._schema,
                ["_event"],
                commit_properties=CommitProperties(
                    custom_metadata=said,
                    app_transactions=[Transaction(app, number) for app, number in apps],
                    max_commit_retries=0 if exclusive else MOST_ATTEMPTS,
                ),
                post_commithook_properties=NO_HOOKS,
            )
        self._flush_entries(self.version + 1)

    def flush(self) -> None:
        """Make all entries of the snapshot, also those of others, outlast a power cut."""
        self._flush_entries(max(self.version - KEEP_VERSIONS, 0))

    def _flush_entries(self, first: int) -> None:
        if not self.storage.local:
            return
        while True:  # once more where another process has just tidied some away, behind a checkpoint that it flushed
            paths, version = ["_delta_log"], first
            while version <= self.version or self.storage.exists(entry_path(version)):
                if self.storage.exists(entry_path(version)):
                    paths.append(entry_path(version))
                version += 1
            try:
                self.storage.flush(paths)
            except StorageError as error:
                gone = [path for path in paths if not self.storage.exists(path)]
                if not gone or gone[0] == paths[0]:
                    # What was written is there, and may stay.
                    raise StorageError(error.message, hint=error.hint, context={"path": self.path}) from error
            else:
                return

    def _handle(self) -> DeltaTable:
        """Return a handle of delta-rs on the snapshot."""
        try:
            if self._table is not None and self._table.version() < self.version:
                with delta_call(self.path):
                    self._table.update_incremental()
        except (DeltaError, OSError):
            self._table = None  # it fell behind what is left of the table's log
        if self._table is None:
            self._table = self._opened_to_write()
        if self._table.version() != self.version:
            raise self._lost(found=f"version={self._table.version()}")
        return self._table

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns, in a commit from the snapshot."""
        fields = list(Schema.from_arrow(columns).fields)
        self._raise_format()
        self._change(
            lambda alter, said: alter.add_columns(fields, commit_properties=said, post_commithook_properties=NO_HOOKS)
        )

    def change_facts(self, form: LogFormat, *, exclusive: bool = False) -> None:
        """Give the log other facts, in a commit from the snapshot."""
        if not exclusive:
            self._raise_format()
        facts = {METADATA_KEY: form.facts()}

        def change(alter: TableAlterer, said: CommitProperties | None) -> None:
            alter.set_column_metadata("_event", facts, commit_properties=said, post_commithook_properties=NO_HOOKS)

        self._change(change, exclusive=exclusive)

    def _raise_format(self) -> None:
        """Raise the format of an older log, before its first commit that is marked.

        By a commit that nothing may come before: what comes behind it is judged, and libraries that mark nothing find
        it at their next look.

        Raises
        ------
        LostRaceError
            If that was done, or another did it: everything is to be decided again.
        """
        if self.format.version < FORMAT_VERSION:
            rows = self.live.index("message").rows
            streams = set(self.live.index("progress").lone_streams())
            known = bool((rows >= 0).all()) and None not in streams
            before = (int(rows.sum()), len(streams - {OPEN_STREAM})) if known else None
            self.change_facts(self.format.raised(self.version + 1, before), exclusive=True)
            raise self._lost(found="that the format was to be raised first", determinate=True)

    def _change(
        self, change: Callable[[TableAlterer, CommitProperties | None], None], *, exclusive: bool = False
    ) -> None:
        """Change columns, or what is said of them, in a commit from the snapshot."""
        try:
            if self._own:
                opened = self._handle() if self.storage.local else self._opened()
                entry = entry_of_change(opened, lambda alter: change(alter, None))
                self._put_behind(partial(signed, entry), lambda other: exclusive or other.changes_table)
                return
            self._refuse_gap()
            table = self._handle()
            with delta_call(self.path):
                change(table.alter, CommitProperties(max_commit_retries=0) if exclusive else None)
            self._flush_entries(self.version + 1)
        except (DeltaError, OSError) as error:
            raise self._failed(error) from error

    def tidy(self, *, now: bool = False) -> bool:
        """Write a checkpoint where one is due, and delete old entries of the table's log: see `TableUpkeep.tidy`."""
        if (now or self.is_due()) and not self._is_there(surely=True):
            return False  # another table, or an earlier state of this one: the next look says which
        return self._upkeep.tidy(self.version, harmless=self._rules.harmless, now=now)

    def is_due(self) -> bool:
        """Return whether a checkpoint is due. Reads nothing, as a rule."""
        return self._upkeep.is_due(self.version)

    def replaced(self, before: int) -> dict[str, tuple[int, int]]:
        """Return the files that commits took out of the table up to a moment, as far as its log tells."""
        if not self._rules.harmless:
            msg = (
                f"could not tell which files of log {self.path!r} nobody needs: found"
                f" {', '.join((*self._rules.unknown, *self._rules.refused))}"
            )
            raise LogFormatError(msg, hint="run VACUUM by the engine that set it up", context={"path": self.path})
        return self._upkeep.replaced(self.version, before)

    @property
    def replaced_kept_ms(self) -> int:
        """How many milliseconds the table keeps files that were replaced: `delta.deletedFileRetentionDuration`."""
        said = str(self._configuration.get(_KEPT_PROPERTY, "interval 7 days")).lower().removeprefix("interval")
        try:
            return parse_duration(said.strip()).amount // 1000
        except ValueError:
            return 7 * 86_400_000  # as Delta has it where nothing is said

    def aside(self) -> DeltaStore | None:
        """Return a second handle on the same snapshot. It takes no request."""
        other = object.__new__(DeltaStore)
        other.__dict__.update(self.__dict__)
        other.live, other._table = self.live.copied(), None
        other._guard = self._guard.copied(other._evidence())
        return other

    def problems(self) -> list[str]:
        """Return what is wrong with the upkeep of the table, also what others should have done; nothing is changed."""
        return self._upkeep.problems(self.version)


def _version_of(path: str) -> int:
    """Return the version in the name of a file of the table's log."""
    return int(path.rpartition("/")[2][:20])


def _is_unwritable(text: str) -> bool:
    low = text.lower()
    return "table features" in low or "unsupported" in low


def _is_feature_error(text: str) -> bool:
    low = text.lower()
    return "feature" in low or "unsupported" in low or "column mapping" in low


def _refused(path: str, found: str, hint: str, *, attempt: str = "open", **context: object) -> LogFormatError:
    msg = f"could not {attempt} log {path!r}: found {found}"
    return LogFormatError(msg, hint=hint, context={"path": path, **context})


def _unreadable(path: str, attempt: str, error: Exception, **at: object) -> StorageError:
    where = "".join(f" at {name}={value!r}" for name, value in at.items())
    return StorageError(
        f"could not {attempt} log {path!r}{where}: found {plain(error)}",
        hint="check the storage and the table's log, then try again",
        context={"path": path, **at},
        determinate=True,
    )
