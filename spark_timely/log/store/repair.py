"""Repair of a log whose Delta entries are damaged: empty, cut off, not JSON, a copy of another one, or missing.

``spark-timely repair`` calls `repair_log`. (With ``--accept`` it does something else: it takes rows as other programs
left them, by `spark_timely.log.acceptance`.)

A power cut leaves such entries where something was written without a flush: by another engine, an earlier version of
this library, or with `flush=False`. The number of a version is never taken back: another handle may have read
what is behind it. In its place comes either the entry of the one commit whose files are all there and whole, or an
entry without actions; the report says what that loses.

Invariants
----------
1. Nothing is changed unless asked for, and nothing but the damaged entries.
2. An entry is rebuilt only where exactly one attempt at the next commit of a stream has left its files, each can be
   read to its end, and their rows are as many as its progress says.
3. A broken checkpoint goes only where the entries that it stands for are all there, from an older one on.
4. Where an entry behind the damaged one removes a file that only the damaged one can have added, an entry without
   actions could bring rows back a second time: then nothing is repaired.
5. A column whose entry was lost comes back where files behind it have it, and tell its type. Else it is named.
6. What a name claims is compared with what is there: entries behind a gap count only where they say that they were
   made for their version, and no loop is as long as a number in a name.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import Schema
from deltalake.exceptions import DeltaError

from spark_timely.errors import InvalidUsageError, LogDamagedError, LogMissingError, TimelyError
from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.parquet_reader import open_parquet, read_progress
from spark_timely.log.files.statistics import describe_file, describe_progress
from spark_timely.log.machine.state import OPEN_STREAM, DataFile, StreamState, newest_states, states_by_seq
from spark_timely.log.store.checkpoints import Checkpoints, read_checkpoints
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.delta import looks
from spark_timely.log.store.entries import Entry, entry_path, parse_entry, render_entry, signed
from spark_timely.log.store.scratch import LAST_CHECKPOINT, metadata_action, table_at
from spark_timely.log.store.storage import TableStorage, has_table, normal_path, plain
from spark_timely.log.streams import app_id

if TYPE_CHECKING:
    import os


_GONE = "missing"
# Missing entries in a row that are believed: more only where the next whole entry says which version it is, up to
# what a power cut can take.
_GAP = 1
_MOST_GAP = 1000
_UNKNOWN = "what it did is lost"
_ENTRY = re.compile(r"(\d{20})\.json")
_OWN = re.compile(r"(?P<stem>[A-Za-z0-9_]+|open\.)-(?P<seq>\d{12})-[^/]+")


@dataclass(frozen=True, slots=True)
class RepairStep:
    """The finding about one entry or checkpoint, and the repair of it.

    Parameters
    ----------
    version : int
        Version of the table.
    found : str
        What is wrong.
    action : str
        `rebuild`: the entry of a commit whose files are whole, or of columns that files behind it have. `empty`: an
        entry without actions. `delete`: no checkpoint, and no file that names one; the next commits write it again.
    says : str
        What comes back, or what is lost, as a sentence.
    files : tuple of str
        Files that the entry names; or those that are deleted.
    """

    version: int
    found: str
    action: str
    says: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The report of `repair_log`: its findings, and whether they were repaired.

    Parameters
    ----------
    path : str
    steps : tuple of RepairStep
        Empty if no entry and no checkpoint is damaged.
    applied : bool
    """

    path: str
    steps: tuple[RepairStep, ...]
    applied: bool


@dataclass(slots=True)
class _Plan:
    """The entry that is to come in the place of a damaged one, and what is said about it."""

    step: RepairStep
    files: Sequence[DataFile] = ()
    apps: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    columns: list[pa.Field] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    def final_step(self, *, alone: bool) -> RepairStep:
        """Return the step, with what is to be said about columns; `alone`: no other entry can have added them."""
        step, says = self.step, self.step.says
        if self.columns:
            names = " and ".join(f"column {column.name!r} of type {column.type}" for column in self.columns)
            if self.files:
                says = f"{says}; so does {names}, which they have and the log lacks"
            else:
                back = f"{names} comes back: files of later commits have it"
                says = back if alone and says.startswith(_UNKNOWN) else f"{back}; {says}"
                step = replace(step, action="rebuild")
        for name, path in self.unread.items():  # a few
            says += f"; but not column {name!r}, which the log lacks: its values stay in {path!r}, and its type"
            says += " is not surely known; add it by log.add_columns"
        return replace(step, says=says)

    def content(self) -> bytes:
        version = self.step.version
        if not self.files:
            return _placeholder(version, self.metadata)
        return render_entry(
            self.files,
            (),
            self.apps,
            data_change=True,
            read_version=version - 1,
            version=version,
            metadata=self.metadata,
        )


@dataclass(slots=True)
class _Table:
    """The state of a table while its entries are followed."""

    storage: TableStorage
    form: LogFormat
    metadata: Mapping[str, Any]
    states: dict[str, StreamState]
    added: set[str]
    # Since the last whole entry that says what the table is: one of these may have added columns.
    plans: list[_Plan] = field(default_factory=list)

    def follow(self, entry: Entry) -> None:
        """Take in an entry that is whole, or rebuilt."""
        if entry.metadata is not None:
            self.metadata, self.plans = entry.metadata, []
            self.form = _format(Schema.from_json(entry.metadata["schemaString"]), self.storage.uri)
        for add in entry.adds if self.plans else ():  # of the damaged ones' time
            if add["partitionValues"].get("_event") in ("message", "dead"):
                self.find_columns(str(add["path"]))
        self.added |= {str(add["path"]) for add in entry.adds}
        for add in entry.adds:  # one file of progress, as a rule
            if add["partitionValues"].get("_event") == "progress":
                self.take(str(add["path"]))

    def take(self, path: str) -> None:
        for name, state in newest_states(self.form, self.progress(path)).items():
            if name not in self.states or self.states[name].seq < state.seq:
                self.states[name] = state

    def find_columns(self, path: str) -> None:
        """Put columns of a file that the log lacks into the first entry that can have added them (invariant 5)."""
        try:
            with open_parquet(self.storage, path) as file:
                found, leaves = file.schema_arrow, file.schema
        except (TimelyError, pa.ArrowException, OSError):
            return  # of a commit that is not damaged: a reader of it gets the error
        plan = next((plan for plan in self.plans if not plan.files), self.plans[0])
        # Whether such a timestamp has a zone is not in the file.
        zoneless = [leaf.path for leaf in map(leaves.column, range(len(leaves))) if leaf.physical_type == "INT96"]
        for name in self.form.unknown_columns(found):  # none, as a rule
            try:
                sure = name in found.names and not any(f"{path}.".startswith(f"{name}.") for path in zoneless)
                column = found.field(name) if sure else None
                form = self.form if column is None else self.form.extended(pa.schema([column]))
            except TimelyError:
                form = self.form
            if name not in form.payload.names:
                plan.unread.setdefault(name, path)
                continue
            self.form = form
            plan.columns.append(form.payload.field(name))
            self.metadata = plan.metadata = _with_column(self.metadata, form.payload.field(name))

    def progress(self, path: str) -> pa.Table:
        return read_progress(self.storage, path, self.form.progress_schema)


def repair_log(
    path: str | os.PathLike[str],
    /,
    *,
    apply: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> RepairReport:
    """Find damaged entries of a log's table, and put whole ones in their places; delete damaged checkpoints.

    Parameters
    ----------
    path : str or path
        Of a log on a local disk.
    apply : bool
        Whether to do it; else it is only said what would be done, and what is lost.
    pause : callable
        Waits for the given seconds, between looks at an entry that may be being written.

    Returns
    -------
    RepairReport

    Raises
    ------
    LogMissingError
        If there is no table.
    InvalidUsageError
        If the log is not on a local disk: elsewhere an entry appears whole or not at all.
    LogDamagedError
        If it cannot be repaired: the first entry is damaged, or a checkpoint that replaced entries which are gone; or
        an entry behind the damaged one removes what only that one can have added; or an entry is far behind all others,
        and does not say that it is of that version. Restore the file from a copy.

    Notes
    -----
    Stop the writers of the log first: they are refused as long as an entry is damaged, and continue behind it.
    Cost: reads the table's log from its newest checkpoint on, files that no entry names, and footers of the files
    that entries behind a damaged one add.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, spark_timely
    >>> log = spark_timely.create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> repair_log(log.path).steps
    ()
    """
    where = normal_path(path)
    storage = open_storage(where)
    if not storage.local:
        msg = f"could not repair log {where!r}: found a cloud store"
        raise InvalidUsageError(
            msg, hint="restore the object by its versions: entries are put there whole or not at all"
        )
    if not has_table(storage):
        msg = f"could not repair log {where!r}: found no Delta table"
        raise LogMissingError(msg, hint="check the path", context={"path": where})
    checkpoints, entries, damage = _looked_through(storage, pause)
    steps = _deleted(where, checkpoints, entries, damage)
    plans: list[tuple[int, bytes]] = []
    if damage:
        try:
            more, plans = _planned(storage, checkpoints, entries, damage)
        except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
            raise _beyond(where, min(damage), plain(error)) from error
        steps += more
    if not steps:
        return RepairReport(where, (), applied=False)
    if apply:
        for step in steps:  # the pointer before what it points to
            for file in step.files if step.action == "delete" else ():
                storage.delete(file)
                storage.flush(["_delta_log"], always=True)
        for version, content in plans:
            storage.put(entry_path(version), content, replace=True, always=True)
            # A checksum of another engine is of the entry that was lost.
            storage.delete(f"_delta_log/{version:020d}.crc")
    return RepairReport(where, tuple(steps), applied=apply)


def _beyond(path: str, version: int, found: str) -> LogDamagedError:
    return LogDamagedError(
        f"could not repair log {path!r}: found version={version} damaged, and {found}",
        hint="restore the file from a copy of the log, or the whole log",
        context={"path": path, "version": version},
        determinate=True,
    )


def _deleted(
    path: str, checkpoints: Checkpoints, entries: Mapping[int, Entry], damage: Mapping[int, str]
) -> list[RepairStep]:
    """Decide about checkpoints that are broken, or named and not there; the file that names one comes first."""
    steps = []
    versions = {int(name[:20]) for name in checkpoints.broken}
    first = 0 if checkpoints.newest is None else checkpoints.newest + 1
    if checkpoints.lost is not None:
        versions.add(checkpoints.lost)
    for version in sorted(versions, reverse=True):  # one or two
        files = [name for name in checkpoints.broken if int(name[:20]) == version]
        found = "; ".join(checkpoints.broken[name] for name in files) or "named, and not there"
        there = entries.keys() | {v for v, what in damage.items() if what != _GONE}
        # At the latest behind all that are there, however far the name of the checkpoint is.
        gone = next((v for v in range(first, version + 1) if v not in there), None)
        if gone is not None:
            what = f"its checkpoint is {found}" if files else "its checkpoint is not there"
            raise _beyond(path, version, f"{what}, and entry version={gone}, which it stands for, is not there")
        since = f"the entries from version {first} on" if first == 0 else f"the checkpoint of version {first - 1}"
        pointer = [LAST_CHECKPOINT] if version == checkpoints.lost else []
        says = f"nothing is lost: {since} and what is behind say the same, and the next commits write a checkpoint"
        files = [*pointer, *(f"_delta_log/{name}" for name in files)]
        steps.append(RepairStep(version, found, "delete", says, tuple(files)))
    return sorted(steps, key=lambda step: LAST_CHECKPOINT not in step.files)


def _looked_through(
    storage: TableStorage, pause: Callable[[float], None]
) -> tuple[Checkpoints, dict[int, Entry], dict[int, str]]:
    """Return the checkpoints, the entries from the newest whole one on, and what is wrong with the others."""
    for last in looks(pause):
        names = storage.names("_delta_log")
        checkpoints = read_checkpoints(storage)
        checkpoint = checkpoints.newest
        first = 0 if checkpoint is None else checkpoint
        there = sorted(int(name[:20]) for name in names if _ENTRY.fullmatch(name) and int(name[:20]) >= first)
        entries: dict[int, Entry] = {}
        damage: dict[int, str] = {}
        for version in there:  # some hundreds
            try:
                entries[version] = parse_entry(storage.read(entry_path(version)).to_pybytes(), version)
            except (ValueError, LookupError, TypeError) as error:
                damage[version] = plain(error)
        # Without the first entry and a checkpoint there is no log, however many others are missing with it.
        missing = [0] if checkpoint is None and there[:1] != [0] else []
        for before, after in pairwise(there if checkpoint is None else [checkpoint, *there]):
            _check_gap(storage.uri, before, after, entries)
            missing += range(before + 1, after)
        damage |= dict.fromkeys(missing, _GONE)
        if last or not (damage or checkpoints.broken or checkpoints.lost is not None):
            break
    return checkpoints, entries, damage


def _check_gap(path: str, before: int, after: int, entries: Mapping[int, Entry]) -> None:
    """Refuse an entry far behind the one before, unless the next whole entry says that it is of that version."""
    missing = after - before - 1
    if missing <= _GAP:
        return
    proof = next((entries[v] for v in sorted(entries) if v >= after), None)
    if missing > _MOST_GAP or proof is None or proof.made_for is None:
        msg = f"could not repair log {path!r}: found entry {entry_path(after)!r}, and none of the {missing} entries"
        msg += f" before it, version={before + 1} to version={after - 1}"
        raise LogDamagedError(
            msg,
            hint="move the file out of the folder if it does not belong there; else restore the missing ones from a"
            " copy of the log",
            context={"path": path, "file": entry_path(after), "version": after},
            determinate=True,
        )


def _planned(
    storage: TableStorage, checkpoints: Checkpoints, entries: Mapping[int, Entry], damage: Mapping[int, str]
) -> tuple[list[RepairStep], list[tuple[int, bytes]]]:
    """Decide about each damaged entry, in order of the versions."""
    first, checkpoint = min(damage), checkpoints.newest
    plans: list[_Plan] = []
    if first == 0:
        raise _beyond(storage.uri, 0, "it is the first: what the log is, is lost")
    if first == checkpoint:
        # The checkpoint has what it did.
        says = "nothing is lost: the checkpoint of this version has it"
        plans.append(_Plan(RepairStep(first, damage[first], "empty", says)))
    begin = checkpoint if checkpoint is not None else 0
    until = max(first - 1, begin)
    table = _table_at(storage, begin, until, checkpoints.broken)
    for version in range(until + 1, max(entries.keys() | damage.keys()) + 1):  # some hundreds
        if version in entries:
            table.follow(entries[version])
            continue
        later = {v: entry for v, entry in entries.items() if v > version}
        plans.append(_plan(table, version, damage[version], later))
    removed = {path for v, entry in entries.items() if v > first for path in entry.removes}
    strange = sorted(removed - table.added)
    if strange:
        found = f"a later entry removes file {strange[0]!r}, which no other entry adds"
        raise _beyond(storage.uri, first, found)
    alone = sum(1 for plan in plans if not plan.files) == 1
    return [plan.final_step(alone=alone) for plan in plans], [(plan.step.version, plan.content()) for plan in plans]


def _format(schema: Schema, path: str) -> LogFormat:
    event = next(field for field in schema.fields if field.name == "_event")
    return LogFormat.from_table(pa.schema(schema.to_arrow()), event.metadata, path)


def _with_column(metadata: Mapping[str, Any], column: pa.Field) -> dict[str, Any]:
    """Return what a table is, with a further column; one that needs a feature is none: see `LogFormat.extended`."""
    schema = json.loads(metadata["schemaString"])
    schema["fields"] += json.loads(Schema.from_arrow(pa.schema([column])).to_json())["fields"]
    return {**metadata, "schemaString": json.dumps(schema, separators=(",", ":"))}


def _table_at(storage: TableStorage, begin: int, until: int, broken: Collection[str]) -> _Table:
    with table_at(storage, begin, until, without=broken) as (opened, _):
        form, metadata = _format(opened.schema(), storage.uri), metadata_action(opened)
        listing = pa.table(opened.get_add_actions())
    found = _Table(storage, form, metadata, {}, set(listing["path"].to_pylist()))
    for path in sorted(found.added):
        if path.startswith("_event=progress/"):
            found.take(path)
    return found


def _plan(table: _Table, version: int, found: str, later: Mapping[int, Entry]) -> _Plan:
    known = table.added | {str(add["path"]) for entry in later.values() for add in entry.adds}
    taken = {
        (match["stem"], int(match["seq"]))
        for path in (str(add["path"]) for entry in later.values() for add in entry.adds)
        if path.startswith("_event=progress/") and (match := _OWN.fullmatch(path.partition("/")[2]))
    }
    orphans = [path for path in _progress_files(table.storage) if path not in known]
    attempts = []
    for path in orphans:  # a few
        match = _OWN.fullmatch(path.partition("/")[2])
        if match is None or (match["stem"], int(match["seq"])) in taken:
            continue
        stream = OPEN_STREAM if match["stem"] == "open." else match["stem"]
        if int(match["seq"]) == (table.states[stream].seq + 1 if stream in table.states else 0):
            attempts.append((stream, path))
    files, problem = _rebuilt(table, attempts, known)
    if files:
        states = {stream: int(_OWN.fullmatch(path.partition("/")[2])["seq"]) for stream, path in attempts}  # type: ignore[index]
        apps = {app_id(stream): seq for stream, seq in states.items()}
        n_rows = sum(file.n_rows for file in files if file.event == "message")
        what = " and ".join(f"commit {seq} of stream {stream!r}" for stream, seq in states.items())
        says = f"{what} comes back, with {n_rows} messages: all its files are there and whole"
        step = RepairStep(version, found, "rebuild", says, tuple(file.path for file in files))
        plan = _Plan(step, files, apps)
        table.plans.append(plan)
        table.follow(parse_entry(plan.content()))
        return plan
    streams = [stream for stream in sorted(table.states) if _went_on(table, stream, taken)]
    gone = [f"commit {table.states[stream].seq + 1} of stream {stream!r}" for stream in streams]
    lost = f"{', '.join(gone)} is lost" if gone else f"{_UNKNOWN}, unless it was upkeep, which loses nothing"
    plan = _Plan(RepairStep(version, found, "empty", f"{lost}: {problem}"))
    table.plans.append(plan)
    return plan


def _went_on(table: _Table, stream: str, taken: set[tuple[str, int]]) -> bool:
    """Whether a later entry has the commit after the next one of a stream, and none has the next one."""
    stem, seq = ("open." if stream == OPEN_STREAM else stream), table.states[stream].seq
    return (stem, seq + 2) in taken and (stem, seq + 1) not in taken


def _rebuilt(table: _Table, attempts: Sequence[tuple[str, str]], known: set[str]) -> tuple[list[DataFile], str]:
    """Return the files of the one commit that was begun, or none and why."""
    streams = [stream for stream, _ in attempts]
    opening = len(streams) == 2 and OPEN_STREAM in streams and any(s not in table.states for s in streams)
    if not attempts:
        return [], "no commit that comes next has left its progress"
    if len(attempts) > 1 and not opening:
        return [], f"{len(attempts)} commits that may come next have left files, and nothing shows which of them it was"
    files: list[DataFile] = []
    try:
        for stream, path in attempts:  # one, or two
            rows = table.progress(path)
            batches = states_by_seq(table.form, rows)
            state, before = batches[0], table.states.get(stream)
            if len(batches) != 1 or state.stream != stream or (before is not None and state.before != before.counts):
                return [], f"the progress in {path!r} does not follow what the stream holds"
            files.append(describe_progress(path, table.storage.read(path).size, rows, table.form.domain))
            files += _data_files(table, state, known)
    except (TimelyError, pa.ArrowException, OSError, IndexError) as error:
        return [], f"a file of the commit that comes next is damaged: {plain(error)}"
    wanted = sum(state.rows for stream, path in attempts for state in states_by_seq(table.form, table.progress(path)))
    dead = sum(_dead_of(state) for _, path in attempts for state in states_by_seq(table.form, table.progress(path)))
    for event, n_wanted in (("message", wanted), ("dead", dead)):
        n_found = sum(file.n_rows for file in files if file.event == event)
        if n_found != n_wanted:
            what = "messages" if event == "message" else "dead letters"
            return [], f"{n_found} of {n_wanted} {what} of the commit that comes next are there, or of several attempts"
    return files, ""


def _dead_of(state: StreamState) -> int:
    """Return how many dead letters a commit says that it has: of a micro-batch, an append, or a step of a dataflow."""
    batch, output = state.note.batch, state.note.output
    n_batch = batch.dead if batch is not None and batch.seq == state.seq else 0
    n_step = output.step.get("dead", 0) if output is not None and output.step is not None else 0
    assert isinstance(n_step, int)
    return n_batch + n_step + state.note.letters


def _data_files(table: _Table, state: StreamState, known: set[str]) -> Iterator[DataFile]:
    """Yield the files of messages and dead letters that were written for a commit, read to their ends."""
    prefix = f"{state.stream}-{state.seq:012d}-"
    for event in ("message", "dead"):
        for path in _below(table.storage, f"_event={event}", prefix):
            if path in known:
                continue
            with open_parquet(table.storage, path) as file:
                rows = file.read()
            if not rows.num_rows:
                continue
            seqs = np.unique(rows["_seq"].to_numpy()).tolist()
            if seqs != [state.seq] or set(rows["_stream"].unique().to_pylist()) != {state.stream}:
                msg = f"rows of another commit in {path!r}"
                raise OSError(msg)
            inside = "dead" if "/_event=dead/" in f"/{path}" else "message"
            yield describe_file(table.storage, path, domain=table.form.domain, event=inside)


def _below(storage: TableStorage, folder: str, prefix: str) -> Iterator[str]:
    """Yield the Parquet files of a folder whose names begin so, and those in folders of such names: Spark's."""
    for name in storage.names(folder):
        if not name.startswith(prefix):
            continue
        if name.endswith(".parquet"):
            yield f"{folder}/{name}"
            continue
        for inner in storage.names(f"{folder}/{name}"):
            if inner.endswith(".parquet"):
                yield f"{folder}/{name}/{inner}"
            elif inner.startswith("_event=") and inner != "_event=progress":  # of which the log has no file
                leaves = storage.names(f"{folder}/{name}/{inner}")
                yield from (f"{folder}/{name}/{inner}/{leaf}" for leaf in leaves if leaf.endswith(".parquet"))


def _progress_files(storage: TableStorage) -> list[str]:
    return [f"_event=progress/{name}" for name in storage.names("_event=progress") if name.endswith(".parquet")]


def _placeholder(version: int, metadata: Mapping[str, Any] | None) -> bytes:
    """Return an entry that says why it is there, and does nothing unless columns come back."""
    info = {"timestamp": time.time_ns() // 1_000_000, "operation": "REPAIR", "engineInfo": "spark-timely"}
    actions: list[dict[str, Any]] = [{"commitInfo": info}, *([{"metaData": metadata}] if metadata is not None else [])]
    return signed("\n".join(map(json.dumps, actions)).encode(), version)
