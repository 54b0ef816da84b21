"""Retention of a log: `since` and the retainers, read from a snapshot and moved by commits of their own.

`since` is the frontier from which on the log can be read; a retainer keeps it from passing the position of a named
consumer. `Log.allow_compaction` and `Log.retain` call this, as do upkeep after commits and, by `LogCore`, the replay
source, subscriptions and instances. What is decided is in pure functions (`machine.since`); what since gives up is
deleted by `forgetting`. (An instance's own retention is `spark_timely.compute.drive.retention`.)

Each commit writes the whole state: a row of `_event=since` for each time of since, with what the log keeps in its note,
and one of `_event=retain` for each time that a retainer needs.

Invariants
----------
1. The state is what the rows with the greatest `_seq` say, whatever files they are in: others may have rewritten
   them, and files of earlier commits stay for a while.
2. All these commits exclude each other by one app id. A lost race throws the decision away, and it is made again from
   the state and the frontier of a new snapshot.
3. The frontier may move while since is decided: it only moves forward, so what it needs does too.
4. Rows that another program has deleted are missed: what says since also says how many retainers there are, and a log
   that has forgotten has a since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import LogDamagedError, OwnershipError, SinceViolationError, TimelyError
from spark_timely.log.files.parquet import write_progress_file
from spark_timely.log.files.parquet_reader import read_progress, side_by_side
from spark_timely.log.machine.decide import Attempt, Settled, commit_loop
from spark_timely.log.machine.history import History
from spark_timely.log.machine.since import (
    Keep,
    Retainer,
    Retention,
    decide_dead,
    decide_keep,
    decide_kept,
    decide_release,
    decide_retain,
    decide_since,
    everything,
    is_later,
    needed_from,
)
from spark_timely.log.streams import as_data_files, discard
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.store.base import Store
    from spark_timely.log.store.storage import Storage
    from spark_timely.log.streams import StreamStates
    from spark_timely.time.antichain import IntArray


R = TypeVar("R")

SINCE_STREAM: Final = "#since"
_APP: Final = f"timely/{SINCE_STREAM}"
_FILE_STEM: Final = "since"
# Files of earlier commits are taken out of the table this many at a time.
_MOST_OLD: Final = 16
# How often that is tried while others commit: nobody waits for it.
_PATIENCE: Final = 3


def retention_of(states: StreamStates) -> Retention:
    """Return what the log remembers, as of the snapshot.

    Notes
    -----
    Cost: two small files where anything was ever retained or forgotten, read once; else nothing.
    """
    store = states.store
    newest = _newest(store.live.index("since"))
    if not newest:
        if store.format.forgets or len(store.live.index("retain")):
            raise _lost(store, "no row that says from where it can be read")
        return everything(store.format.domain)
    paths = (*newest, *_newest(store.live.index("retain")))
    return states.kept(paths, lambda: _read(store, paths))


def _lost(store: Store, found: str) -> LogDamagedError:
    """Return the error for a log whose memory of what it forgot was deleted by another program (invariant 4)."""
    return LogDamagedError(
        f"could not read log {store.path!r}: found {found}, although it has forgotten, or readers retain it",
        hint="restore the table to the version before the one in which another program deleted rows of it",
        context={"path": store.path, "version": store.version},
        determinate=True,
    )


def _newest(index: FileIndex) -> list[str]:
    """Return the files that may hold the newest commit."""
    if not len(index):
        return []
    chosen: list[str] = index.paths[index.seq_hi == index.seq_hi.max()].tolist()
    return sorted(chosen)


def _read(store: Store, paths: Sequence[str]) -> Retention:
    form, storage = store.format, store.storage
    tables = side_by_side(storage, lambda path: read_progress(storage, path, form.progress_schema), list(paths))
    rows = dict(zip(paths, tables, strict=True))
    moved = pa.concat_tables(table for path, table in rows.items() if path.startswith("_event=since/"))
    others = [table for path, table in rows.items() if not path.startswith("_event=since/")]
    seq = int(pc.max(moved["_seq"]).as_py())
    moved = moved.filter(pc.equal(moved["_seq"], seq))
    retained = pa.concat_tables([form.progress_schema.empty_table(), *others])
    retained = retained.filter(pc.equal(retained["_seq"], seq))
    notes = retained["_note"].to_pylist()
    times = form.domain.from_columns(retained)
    retainers: dict[str, Retainer] = {}
    for note in dict.fromkeys(notes):
        try:
            said = json.loads(note)
            name, owner, expires, overrun = (said[key] for key in ("consumer", "owner", "expires", "overrun"))
            run, turn, brief = said.get("run", ""), said.get("turn", 0), said.get("brief", False)
        except (TypeError, ValueError, KeyError) as error:
            msg = f"could not read who retains log {store.path!r}: found note={note!r:.200}"
            hint = "release the retainers and register them again, or restore the file"
            raise LogDamagedError(msg, hint=hint, context={"path": store.path}) from error
        mine = np.array([other == note for other in notes], np.bool_)
        needed = Antichain.from_times(times[mine], form.domain.arity)
        retainers[name] = Retainer(name, needed, owner, expires, overrun, run, turn, brief)
    wanted = moved["_count"][0].as_py()
    if wanted is not None and wanted != len(retainers):
        raise _lost(store, f"{len(retainers)} of {wanted} retainers")
    return Retention(
        since=Antichain.from_times(form.domain.from_columns(moved), form.domain.arity),
        seq=seq,
        moved_by=moved["_query"][0].as_py() or "",
        moved_at=moved["_at"][0].value if moved["_at"][0].is_valid else 0,
        retainers=MappingProxyType(dict(sorted(retainers.items()))),
        **_kept_of(store, moved["_note"][0].as_py()),
    )


def _kept_of(store: Store, note: str | None) -> dict[str, Any]:
    if note is None:
        return {}
    try:
        said = json.loads(note)
        dead = None if said.get("dead") is None else int(said["dead"])
        if "keep" not in said:
            return {"dead": dead}
        seen = tuple((at, Antichain.from_json(times, 1)) for at, times in said["seen"])
        return {"keep": Keep(said["keep"], said["committed"], seen), "dead": dead}
    except (TypeError, ValueError, KeyError, TimelyError) as error:
        msg = f"could not read what log {store.path!r} keeps: found note={note!r:.200}"
        hint = "set what it keeps again, or restore the file"
        raise LogDamagedError(msg, hint=hint, context={"path": store.path}) from error


def _note_of(retention: Retention) -> str | None:
    keep, said = retention.keep, {}
    if keep is not None:
        seen = [[at, there.to_json()] for at, there in keep.seen]
        said = {"keep": keep.length, "committed": keep.committed, "seen": seen}
    if retention.dead is not None:
        said["dead"] = retention.dead
    return json.dumps(said, sort_keys=True) if said else None


def _rows(form: LogFormat, retention: Retention, times: IntArray, **values: object) -> pa.Table:
    """Return one row for each time, in the log's progress schema."""
    n = len(times)
    known = {"_stream": SINCE_STREAM, "_seq": retention.seq, **values}
    columns = dict(zip(form.domain.columns, np.asarray(times, np.int64).reshape(n, -1).T, strict=True))
    arrays = [
        pa.array(columns[field.name].tolist(), field.type)
        if field.name in columns
        else pa.array([known.get(field.name)] * n, field.type)
        for field in form.progress_schema
    ]
    return pa.Table.from_arrays(arrays, schema=form.progress_schema)


def first_files(storage: Storage, form: LogFormat, keep: Keep | None) -> list[DataFile]:
    """Write what a log remembers that is made; nothing where that is the same without a file."""
    return [] if keep is None else _files(storage, form, replace(everything(form.domain), seq=0, keep=keep))


def _written(store: Store, retention: Retention) -> list[DataFile]:
    """Write the files that say a state."""
    return _files(store.storage, store.format, retention)


def _files(storage: Storage, form: LogFormat, retention: Retention) -> list[DataFile]:
    at = retention.moved_at if retention.moved_by else None
    moved_by, note = retention.moved_by or None, _note_of(retention)
    known = {"_query": moved_by, "_at": at, "_reason": "since", "_note": note, "_count": len(retention.retainers)}
    since = _rows(form, retention, retention.since.times, **known)
    files = [write_progress_file(storage, since, _FILE_STEM, retention.seq, form.domain, event="since")]
    if retention.retainers:
        parts = []
        for each in retention.retainers.values():
            said = {"consumer": each.name, "owner": each.owner, "expires": each.expires, "overrun": each.overrun}
            if each.run:
                said.update(run=each.run, turn=each.turn)
            if each.brief:
                said.update(brief=True)
            note = json.dumps(said, sort_keys=True, ensure_ascii=False)
            parts.append(_rows(form, retention, each.needed.times, _query=each.owner, _reason="retained", _note=note))
        rows = pa.concat_tables(parts)
        files.append(write_progress_file(storage, rows, _FILE_STEM, retention.seq, form.domain, event="retain"))
    return files


@dataclass(frozen=True, slots=True)
class _RetentionAttempt(Attempt):
    """The whole state after a decision, in files of its own."""

    states: StreamStates
    retention: Retention
    files: Sequence[DataFile]

    def put(self) -> None:
        self.states.store.transact(self.files, [(_APP, self.retention.seq)], data_change=False)

    def has_landed(self) -> bool:
        landed = self.files[0].path in self.states.store.live
        if landed:
            self.states.store.flush()
        return landed

    def is_overtaken(self) -> bool:
        # Whether it landed before the others need not be known: the decision is made again, and is the same twice.
        return retention_of(self.states).seq >= self.retention.seq

    def discard(self) -> None:
        discard(self.states.store.storage, self.files)


def _changed(states: StreamStates, what: str, decide: Callable[[Retention], Retention | None]) -> Retention:
    """Commit what is decided about the state of a new snapshot; return the state after it."""
    store = states.store

    def attempt(_: object) -> Settled[Retention] | _RetentionAttempt:
        states.check_may_continue((), what={"since", "retain", "progress"})
        before = retention_of(states)
        after = decide(before)
        if after is None:
            # The process that made it so may have died before it was on the disk.
            store.flush()
            return Settled(before)
        store.check_writable()
        return _RetentionAttempt(states, after, _written(store, after))

    with states.lock:
        return commit_loop(
            f"{what} of log {store.path!r}",
            context={"path": store.path},
            store=store,
            decide=attempt,
            done=lambda: retention_of(states),
        )


def allow_compaction(
    states: StreamStates, wanted: Antichain, *, by: str, clock: int, dry_run: bool = False
) -> Retention:
    """Move since as far as is wanted and nobody needs what is before; or say how far that would be."""
    form = states.store.format

    def decide(retention: Retention) -> Retention | None:
        frontier, minimum = states.counts().frontier, form.domain.minimum
        own = needed_from(form.kind, frontier, minimum)
        keep = _known(states, retention.keep, clock)
        floor = None if keep is None else keep.floor(frontier, _greatest(states), minimum, clock)
        return decide_since(replace(retention, keep=keep), wanted, own, by=by, now=clock, floor=floor)

    if dry_run:
        states.refresh()
        before = retention_of(states)
        return decide(before) or before
    return _changed(states, "allow compaction", decide)


def set_keep(states: StreamStates, keep: Keep | None, *, clock: int) -> Retention:
    """Set how much the log keeps."""

    def decide(retention: Retention) -> Retention | None:
        return decide_keep(retention, _known(states, keep, clock), states.counts().frontier, now=clock)

    return _changed(states, "set what is kept", decide)


def set_dead(states: StreamStates, dead: int | None) -> Retention:
    """Set how long dead letters stay, microseconds; None: for ever."""
    return _changed(states, "set how long dead letters stay", lambda retention: decide_dead(retention, dead))


def move_kept(states: StreamStates, *, clock: int) -> None:
    """Move since as far as the log need not keep: called with upkeep after a commit.

    Notes
    -----
    Cost: nothing where the log keeps everything, or since stays; else one small file and one commit of the table. Where
    upkeep did not come for long, all progress is read.
    """
    form = states.store.format

    def decide(retention: Retention) -> Retention | None:
        frontier, minimum = states.counts().frontier, form.domain.minimum
        own = needed_from(form.kind, frontier, minimum)
        retention = replace(retention, keep=_known(states, retention.keep, clock))
        return decide_kept(retention, frontier, _greatest(states), own, minimum=minimum, now=clock)

    if decide(retention_of(states)) is not None:
        _changed(states, "move since", decide)
        if not states.store.append_only:
            drop_old_files(states)


def behind(states: StreamStates, length: int) -> Antichain:
    """Return the frontier that is a length before that of a log of one coordinate."""
    return Keep(length, 0).floor(states.counts().frontier, _greatest(states), states.store.format.domain.minimum, 0)


def retained_bytes(states: StreamStates, *, clock: int) -> dict[str, int]:
    """Return what each live retainer costs: bytes of files that could be forgotten if it alone were gone.

    Of files that lie before since as a whole then, by the greatest times in them; of a collection their sums stay.
    """
    form, retention = states.store.format, retention_of(states)
    frontier, minimum = states.counts().frontier, form.domain.minimum
    own = needed_from(form.kind, frontier, minimum)
    keep = _known(states, retention.keep, clock)
    floor = own if keep is None else keep.floor(frontier, _greatest(states), minimum, clock)
    found = {}
    for gone in retention.alive(clock):  # quadratic in the number of consumers
        others = {name: each for name, each in retention.retainers.items() if name != gone.name}
        without = replace(retention, retainers=MappingProxyType(others))
        sizes = [0, 0]
        for turn, state in enumerate((retention, without)):
            moved = decide_since(state, floor if own.is_empty else own, own, by="", now=clock, floor=floor) or state
            sizes[turn] = files_before(states, moved.since)[1]
        found[gone.name] = sizes[1] - sizes[0]
    return found


def files_before(states: StreamStates, since: Antichain) -> tuple[int, int]:
    """Return how many files of messages lie before a frontier as a whole, and how many bytes they have."""
    index = states.files("message")
    if since.is_empty:
        return len(index), int(index.sizes.sum())
    kind, times = states.store.format.kind, index.max_times
    before = index.known & ~(since.beyond(times) if kind == "stream" else is_later(since, times))
    return int(before.sum()), int(index.sizes[before].sum())


def _known(states: StreamStates, keep: Keep | None, clock: int) -> Keep | None:
    """Look up what the frontier was where nobody noted it for long."""
    if keep is None or not keep.is_stale(clock):
        return keep
    then = clock - keep.committed
    bases = states.bases()
    if any(state.at > then for state in states.commits_of(bases).values()):
        return keep  # the commits of then are forgotten: what was noted since will do in time
    return keep.known(
        then, History(states.progress(), states.store.format.domain).frontier("timestamp", then + 1, None)
    )


def _greatest(states: StreamStates) -> int | None:
    """Return the greatest time in a complete log of one coordinate, None if it is not known."""
    if not states.counts().frontier.is_empty:
        return None
    index = states.store.live.index("message")
    return int(index.max_times[:, 0].max()) if len(index) and index.known.all() else None


def retain(
    states: StreamStates,
    name: str,
    needed: Antichain | Callable[[Retention], Antichain],
    *,
    owner: str,
    expires: int,
    clock: int,
    run: str = "",
    turn: int | None = None,
    brief: bool = False,
) -> Retention:
    """Register, move or renew a retainer; an empty antichain releases it.

    What is needed may depend on the state from which it is decided.
    """
    path, domain = states.store.path, states.store.format.domain

    def decide(retention: Retention) -> Retention | None:
        wanted = needed(retention) if callable(needed) else needed
        return decide_retain(
            path, domain, retention, name, wanted, owner=owner, expires=expires, now=clock, run=run, turn=turn,
            brief=brief,
        )  # fmt: skip

    return _changed(states, f"retain a position for consumer {name!r}", decide)


@dataclass(frozen=True, slots=True)
class Retaining:
    """A retainer to be registered, moved, renewed or released; `spark_timely.log.machine.since.decide_retain` takes it.

    Attributes
    ----------
    name, owner : str
    needed : Antichain
        Empty releases.
    expires : int
        Microseconds since 1970.
    run : str
    turn : int or None
    brief : bool
    """

    name: str
    needed: Antichain
    owner: str
    expires: int
    run: str = ""
    turn: int | None = None
    brief: bool = False


def retain_several(
    states: StreamStates, wanted: Sequence[Retaining], *, clock: int
) -> tuple[Retention, dict[str, TimelyError]]:
    """Register, move, renew or release several retainers in one commit; one that is refused holds no other back.

    Returns
    -------
    Retention
        After it.
    dict of str to TimelyError
        Those that were refused, by name.
    """
    path, domain = states.store.path, states.store.format.domain
    refused: dict[str, TimelyError] = {}

    def decide(retention: Retention) -> Retention | None:
        refused.clear()
        after = retention
        for each in wanted:
            try:
                decided = decide_retain(
                    path,
                    domain,
                    after,
                    each.name,
                    each.needed,
                    owner=each.owner,
                    expires=each.expires,
                    now=clock,
                    run=each.run,
                    turn=each.turn,
                    brief=each.brief,
                )
            except (OwnershipError, SinceViolationError) as error:
                refused[each.name] = error
                continue
            if decided is not None:
                after = replace(decided, seq=retention.seq + 1)
        return None if after is retention else after

    return _changed(states, "retain positions", decide), refused


def release(states: StreamStates, name: str) -> Retention:
    """Let a retainer go, whatever query or program owns it."""
    path, tried = states.store.path, False

    def decide(retention: Retention) -> Retention | None:
        nonlocal tried
        if tried and name not in retention.retainers:
            return None  # the attempt before did it after all
        tried = True
        return decide_release(path, retention, name)

    return _changed(states, f"release consumer {name!r}", decide)


@dataclass(frozen=True, slots=True)
class _Removal(Attempt):
    """Files of earlier commits leave the table."""

    store: Store
    sources: Sequence[DataFile]

    def put(self) -> None:
        self.store.transact([], [], removes=self.sources, data_change=False, exclusive=True)

    def has_landed(self) -> bool:
        return not any(file.path in self.store.live for file in self.sources)


def drop_old_files(states: StreamStates) -> bool:
    """Take the files of earlier commits of since and retainers out of the table, once there are many.

    Returns
    -------
    bool
        Whether that was done.
    """
    store = states.store
    turns = iter(range(_PATIENCE))

    def decide(_: object) -> Settled[bool] | _Removal:
        old = _old_files(store)
        if len(old) >= _MOST_OLD:
            states.check_untouched()
        if len(old) < _MOST_OLD or next(turns, None) is None:
            return Settled(answer=False)
        return _Removal(store, old)

    return commit_loop(
        f"drop old files of log {store.path!r}",
        context={"path": store.path},
        store=store,
        decide=decide,
        done=lambda: True,
    )


def _old_files(store: Store) -> list[DataFile]:
    newest = store.live.index("since").seq_hi.max(initial=-1)
    found = []
    for event in ("since", "retain"):
        index = store.live.index(event)
        found += as_data_files(index.select(index.seq_hi < newest))
    return found
